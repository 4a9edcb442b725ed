#!/usr/bin/env bash
# A plain machine: run the recipe of this folder, publish what was let through, tell somebody of anything else.
# By cron:      0 3 * * *  /srv/merge/nightly.sh
# By systemd:   nightly.service and nightly.timer
set -uo pipefail
cd "$(dirname "$0")" || exit 2
mkdir -p reports released

# One at a time. rebasin holds the lock as well: as long as it lives, also where this script was killed.
exec 9> .nightly.lock
flock --nonblock 9 || { echo "nightly: the run before still goes on"; exit 0; }

# rebasin as a child that is waited for: a signal to this script is handed on, and reports are sent after it.
run="" ended=""
trap 'ended=yes; [ -z "$run" ] || kill -TERM "$run" 2> /dev/null' TERM INT HUP
rebasin run recipe.yaml --time-limit "${TIME_LIMIT:-2h}" \
  --junit reports/junit.xml --result reports/result.json --step-summary reports/summary.md > reports/log.txt 2>&1 &
run=$!
[ -z "$ended" ] || kill -TERM "$run" 2> /dev/null # it was told before it was known whom to tell
wait "$run"; code=$?
while kill -0 "$run" 2> /dev/null; do wait "$run"; code=$?; done
trap - TERM INT HUP

case $code in
  0) told="" ;;
  1) told="a gate was not met" ;;
  2) told="the recipe or its options are wrong" ;;
  3 | 4 | 6) told="a model, the data or the network's code fails" ;;
  5) told="the machine lacks memory or disk" ;;
  124) told="out of time; the next run goes on" ;;
  130 | 143) told="ended from outside; the next run goes on" ;;
  137) told="killed, perhaps for its memory" ;;
  *) told="failed" ;;
esac
if [ -n "$told" ]; then
  # Whoever is on call reads this: the last ten lines of the log say what happened, and the command to see it at home.
  { echo "merge: $told (exit code $code)"; tail -n 10 reports/log.txt; } | ${NOTIFY:-cat} >&2
  exit "$code"
fi

# A release of its own, whole or not at all: the files that this run tells of, and none that lie beside them.
# `current` is what servers read.
release="$(date -u +%Y%m%dT%H%M%SZ)"
rm -rf released/.new && mkdir released/.new &&
  python3 -I -c '
import json
told = json.load(open("reports/result.json"))
print(*{name for step in told["steps"] for name in step["outputs"]}, *told["written"], sep="\n")
' | grep '^out/' | tar --create --file - --files-from - | tar --extract --file - --directory released/.new &&
  mv released/.new/out "released/$release" && ln -sfn "$release" released/.current && mv -T released/.current released/current || exit 5
rm -rf released/.new
rebasin promote out/report/report.json baseline.json
