"""Which repair a merge gets, as far as options, spec and data tell."""

import pytest

from rebasin_cli.commands.verbs import repairs
from rebasin_cli.errors import UsageError
from rebasin_cli.session.search_options import Repair
from rebasin_cli.spec import library


def test_batchnorm_statistics_need_data_or_a_word(tmp_path):
    fitted = library.find(
        {
            "layers.0.weight": (3, 4),
            "norms.0.weight": (3,),
            "norms.0.running_mean": (3,),
            "head.weight": (2, 3),
        }
    )
    assert repairs.decide(fitted, Repair(), has_data=True) == "reset"
    assert repairs.decide(fitted, Repair(repair="none"), has_data=False) == "none"
    with pytest.raises(UsageError, match="makes a broken model"):
        repairs.decide(fitted, Repair(), has_data=False)
