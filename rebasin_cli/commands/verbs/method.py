"""Which method searches, whether it runs a network on samples, and whether these are there.

The one rule where nobody named a method: of `operations.UNNAMED` the first that has all options that were
given (`session.asked.method`); without any, `auto` for a command that makes or measures a merge, where
network and data are known (`chosen`); else wm, which is told (`tell`).
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import DataError, NetworkError
from ...session import method_options, samples
from ...session.listener import SILENT
from ...session.network import origin
from ...session.session import Session
from ...session.subjects import Search


def runs_network(session: Session) -> bool:
    """Whether the search runs the network on samples: the method, or the swaps that come last."""
    polish = session.method != "given" and session.asked.search.polish is not None
    return polish or method_options.needs_data(session.method)


def goes_without(search: Search) -> bool:
    """Whether a search that runs the network on samples also finds something where there are none."""
    return search.polish is None and method_options.can_do_without(search.method)


def tell(session: Session) -> None:
    """Say which method it is where nobody named one, of a command that makes and measures no merge.

    `auto` chooses a method together with a repair, by the loss of what is merged; here nothing is.
    """
    if session.asked.search.open and session.moved and session.perm is None:
        session.fitted  # noqa: B018 (what is wrong with the models comes first)
        session.say("method: wm, by weights alone, as --method names no other (rebasin list methods)")


def chosen(session: Session) -> Session:
    """The session by the method `auto`, where nobody named one and network and data are known; else this."""
    search = session.asked.search
    alone = session.perm is None and search.polish is None and search.groups == "permutations"
    if not (search.open and alone):
        return session
    if why := nothing_to_run(session):
        if session.has_data:
            session.say(f"method: wm, by weights alone: {why}")
        return session
    found = session.by(replace(search, method="auto", open=False))
    found.say(
        "method: auto, the best by held-out loss within about a minute of one core "
        f"(--budget {found.options.budget}); by weights alone, in seconds: --method wm"
    )
    return found


def nothing_to_run(session: Session) -> str:
    """Why a method that can do without network and data has to, "" where they are there.

    What the user named has to work; of what checkpoints record, and names tell, that is not asked.
    """
    if not session.has_data:
        return "no data set is known"
    try:
        if why := no_network(session):
            return why
        samples.open_splits(session.models, session.asked.data, session.seed, SILENT.say, wanted=["train"])
    except (NetworkError, DataError) as error:
        if session.asked.network.net is not None or session.asked.data.data is not None:
            raise
        return error.message
    return ""


def no_network(session: Session) -> str:
    """Why no choice is made by the network's outputs, "" where it is known whose it is.

    Tensors' names alone do not tell what is computed with them. Raises NetworkError.
    """
    if session.network is None:
        return "no network is known"
    if origin(session.network, session.fitted, session.models, session.asked.network)["assumed"]:
        return "only the tensors' names tell the network (give yours with --net)"
    return ""
