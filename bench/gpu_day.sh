#!/usr/bin/env bash
# All that only a machine with an NVIDIA GPU can tell, in about ten minutes:
#
#   make setup && bench/gpu_day.sh [FOLDER]        # PYTHON=python3 takes another environment
#
# Kernels and bundles against float64 on the driver, the same under compute-sanitizer, and the time of
# rows beside torch, with and without a search. Needs: pip install '.[cuda,dev]', torch with CUDA for
# the last two. The folder (build/gpu-day) gets report.txt and the log of every step; the exit code is
# the number of steps that failed. STEPS="doctor kernels" takes some of them.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/gpu-day}
python=${PYTHON:-.venv/bin/python}
jobs=${JOBS:-$(nproc)}
steps=${STEPS:-doctor bundles kernels race-check estimate search}
export PYTHONPATH=src:tests${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$folder"
report=$folder/report.txt
: > "$report"
failed=0

kernels=(tests/gpu/test_gpu_kernels.py tests/gpu/test_gpu_values.py tests/gpu/test_fragments.py
  tests/gpu/test_device_hardware.py tests/gpu/test_device_math.py tests/gpu/test_split.py
  tests/gpu/test_gpu_graphs.py tests/gpu/test_models.py tests/gpu/test_tensor_maps.py)
pytest=("$python" -m pytest -q -p no:cacheprovider)
fewer=(-k "guesses or values_that or test_random_schedules")

step() { # NAME SECONDS COMMAND..: its log, and one line of the report
  local name=$1 seconds=$2 start=$SECONDS code
  shift 2
  [[ " $steps " == *" $name "* ]] || return
  timeout "$seconds" "$@" > "$folder/$name.txt" 2>&1
  code=$?
  ((code)) && ((++failed))
  local said="ok"
  ((code == 124)) && said="stopped after $seconds s"
  ((code)) && ((code != 124)) && said="FAILED ($code)"
  printf '%-12s%4d s  %-20s %s\n' "$name" $((SECONDS - start)) "$said" "$(tail -n 1 "$folder/$name.txt")" | tee -a "$report"
}

nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader | tee -a "$report"
step doctor 60 "$python" -m lumc doctor
step bundles 240 "${pytest[@]}" -n "$jobs" tests/gpu/test_on_device.py
LUMC_PARTS=${PARTS:-100} step kernels 300 "${pytest[@]}" -p on_gpu -n "$jobs" "${kernels[@]}"
LUMC_PARTS=2 step race-check 120 compute-sanitizer --tool racecheck --error-exitcode 9 \
  "${pytest[@]}" -p on_gpu "${kernels[0]}" "${fewer[@]}"
step estimate 240 "$python" bench/gpu_race.py --estimate -o "$folder/estimate.json"
step search 600 "$python" bench/gpu_race.py --budget "${BUDGET:-20s}" -o "$folder/search.json"
for rows in estimate search; do
  [[ -s $folder/$rows.txt ]] && { echo; echo "$rows"; cat "$folder/$rows.txt"; } >> "$report"
done
exit "$failed"
