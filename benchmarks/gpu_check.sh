#!/usr/bin/env bash
# Everything that needs a GPU, in one go: build for the card, tests, sanitizers, benchmark.
#
#     benchmarks/gpu_check.sh [folder for the results, default benchmarks/results]
#
# Needs Python with torch, triton, numpy, pytest, ninja, pybind11 and setuptools, and nvcc; no
# network. It stops itself within GPU_CHECK_SECONDS (default 480). A step that fails does not keep
# the next ones from running; the exit status says whether all passed. The summary comes last.
set -uo pipefail
cd "$(dirname "$0")/.."
budget=${GPU_CHECK_SECONDS:-480}
python=${PYTHON:-python3}
results=${1:-benchmarks/results}
mkdir -p "$results"
export PYTHONPATH=$PWD SLIPFORM_RESULTS=$results SLIPFORM_GPU_CHECK=1
summary=() failed=0

# step NAME SECONDS COMMAND...: run it for at most that long, and never past the budget
step() {
    local name=$1 limit=$2 left=$((budget - SECONDS)) start=$SECONDS status
    shift 2
    if ((left < 10)); then
        summary+=("$name: left out, no time") failed=1
        return 1
    fi
    printf '\n== %s  [%d s]\n' "$name" "$SECONDS"
    timeout --kill-after=5 "$((limit < left ? limit : left))" "$@"
    status=$?
    case $status in
        0) summary+=("$name: passed in $((SECONDS - start)) s") ;;
        124 | 137) summary+=("$name: STOPPED after $((SECONDS - start)) s") failed=1 ;;
        *) summary+=("$name: FAILED with status $status in $((SECONDS - start)) s") failed=1 ;;
    esac
    return "$status"
}

card=${CUDA_VISIBLE_DEVICES:-0}
capability=$(nvidia-smi -i "${card%%,*}" --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '. ')
if [[ ! $capability =~ ^[0-9]+$ ]]; then
    echo "no GPU: nvidia-smi names no compute capability" >&2
    exit 2
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
tests=("$python" -m pytest -q -p no:cacheprovider --confcutdir=tests/gpu --durations=5)

step build 120 env SLIPFORM_CUDA=1 SLIPFORM_NATIVE=1 SLIPFORM_CUDA_ARCHS="$capability" \
    "$python" setup.py -q build_ext --inplace
# The primitives first: what differs there explains everything after.
step primitives 60 "${tests[@]}" tests/gpu/test_primitives.py
step tests 200 "${tests[@]}" tests/gpu --ignore=tests/gpu/test_primitives.py
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        step "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$python" -m benchmarks.gpu_smoke
    done
else
    summary+=("memcheck, racecheck: left out, no compute-sanitizer")
fi
step benchmark 240 "$python" -m benchmarks.gpu_throughput \
    --seconds "$((budget - SECONDS - 30))"

printf '\n== summary  [%d s]\n' "$SECONDS"
printf '%s\n' "${summary[@]}"
exit "$failed"
