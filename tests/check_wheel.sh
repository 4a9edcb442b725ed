#!/bin/sh
# Build the wheel, install it without development packages in a fresh environment, run --help and one merge.
set -eu
python=$(command -v python)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m build --wheel --outdir "$work/dist" . >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$python" - "$work"/dist/*.whl <<'EOF'
import pathlib, sys, zipfile
held = set(zipfile.ZipFile(sys.argv[1]).namelist())
missing = sorted(str(p) for p in pathlib.Path("rebasin_cli").rglob("*.py") if p.as_posix() not in held)
sys.exit(f"not in the wheel: {', '.join(missing)}; see packages in pyproject.toml" if missing else 0)
EOF
"$python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --constraint constraints.txt torch
"$work/venv/bin/python" -m pip install --quiet --constraint constraints.txt "$work"/dist/*.whl
cd "$work"
venv/bin/rebasin --help >help.txt
grep -q merge help.txt
venv/bin/rebasin spec list | grep -q resnet_cifar
for seed in 1 2; do
  venv/bin/rebasin train mlp --data digits --width 16 --epochs 2 --seed "$seed" -o "model$seed.safetensors" --quiet
done
venv/bin/rebasin merge model1.safetensors model2.safetensors -o merged.safetensors
venv/bin/rebasin inspect merged.safetensors | grep -q 'rebasin.command *merge'
echo "the wheel works"
