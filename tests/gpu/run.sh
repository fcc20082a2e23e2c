#!/bin/sh
# Runs the NVML source for a minute beside a PyTorch process that allocates and frees, prints how long the driver's calls
# took, and compares every figure with nvidia-smi's. Needs an NVIDIA GPU, python3 with torch, and cargo or GPUADMITD.
#
#   tests/gpu/run.sh [--seconds N] [--library PATH]      GPUADMITD=/path/to/gpuadmitd   PYTHON=/path/to/python3
set -eu
here=$(dirname "$(readlink -f "$0")")
python=${PYTHON:-python3}

if ! nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then
    echo "SKIPPED: this machine has no NVIDIA GPU (nvidia-smi -L names none); nothing was measured" >&2
    exit 0
fi
if [ -z "${GPUADMITD:-}" ]; then
    (cd "$here/../.." && cargo build --release -p gpuadmitd)
    GPUADMITD="$here/../../target/release/gpuadmitd"
fi
exec "$python" "$here/measure.py" --daemon "$GPUADMITD" --load "$python $here/allocate.py" "$@"
