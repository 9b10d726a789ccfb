#!/usr/bin/env bash
# All that only a machine with a GPU can tell, in about ten minutes: of NVIDIA, of AMD, or a Mac.
#
#   make setup && bench/gpu_day.sh [FOLDER]        # PYTHON=python3 takes another environment
#
# On all of them bundles against float64, by both runners. On NVIDIA's also kernels, the same under
# compute-sanitizer, and the time of rows beside torch, with and without a search (needs: pip install
# '.[cuda,dev]', torch with CUDA for the last two); on the others the time of sample graphs. The folder
# (build/gpu-day) gets report.txt and the log of every step; the exit code is the number of steps that
# failed. STEPS="doctor kernels" takes some of them; GPU=nvidia|amd|apple says whose it is.
set -uo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/gpu-day}
python=${PYTHON:-.venv/bin/python}
jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
export PYTHONPATH=src:tests${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$folder"
report=$folder/report.txt
: > "$report"
failed=0

if [[ $(uname) == Darwin ]]; then here=apple
elif [[ -e /dev/kfd ]]; then here=amd
else here=nvidia; fi
gpu=${GPU:-$here}

kernels=(tests/gpu/test_gpu_kernels.py tests/gpu/test_gpu_values.py tests/gpu/test_fragments.py
  tests/gpu/test_device_hardware.py tests/gpu/test_device_math.py tests/gpu/test_split.py
  tests/gpu/test_gpu_graphs.py tests/gpu/test_models.py tests/gpu/test_tensor_maps.py)
pytest=("$python" -m pytest -p no:cacheprovider)
fewer=(-k "guesses or values_that or test_random_schedules")

limited() { # SECONDS COMMAND..: a Mac has no timeout
  if command -v timeout > /dev/null; then timeout "$@"; else "${@:2}"; fi
}

step() { # NAME SECONDS COMMAND..: its log, and one line of the report
  local name=$1 seconds=$2 start=$SECONDS code
  shift 2
  [[ " $steps " == *" $name "* ]] || return
  limited "$seconds" "$@" > "$folder/$name.txt" 2>&1
  code=$?
  ((code)) && ((++failed))
  local said="ok"
  ((code == 124)) && said="stopped after $seconds s"
  ((code)) && ((code != 124)) && said="FAILED ($code)"
  printf '%-12s%4d s  %-20s %s\n' "$name" $((SECONDS - start)) "$said" "$(tail -n 1 "$folder/$name.txt")" | tee -a "$report"
}

timed() { # TARGET: sample graphs in 32 and 16 bits, compiled, verified and timed on the GPU
  local code=0 graph kind bundle
  [[ -n $1 ]] || { echo "no target for this GPU"; return 1; }
  for graph in mlp attention conv; do
    for kind in f32 bf16; do
      bundle=$folder/$graph-$kind.lb
      local words=(--estimate --target "$1" -o "$bundle")
      [[ $kind == f32 ]] || words+=(--dtype "$kind")
      echo "$graph, $kind"
      "$python" -m lumc compile "graphs/$graph.lg" "${words[@]}" && "$python" -m lumc verify "$bundle" &&
        "$python" -m lumc bench "$bundle" || code=1
    done
  done
  return $code
}
export -f timed
export folder python

# the target of a GPU of AMD, or of its family
OF_FAMILY='
from lumc.kernel.machines import GPUS
from lumc.runtime import amd, hip
print("hip:" + max(GPUS["hip"], key=lambda a: hip.suits(a, amd.architecture())))
'

case $gpu in
  nvidia)
    steps=${STEPS:-doctor bundles kernels race-check estimate search}
    nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,memory.total --format=csv,noheader | tee -a "$report"
    step doctor 60 "$python" -m lumc doctor
    step bundles 240 "${pytest[@]}" -n "$jobs" tests/gpu/test_on_device.py
    LUMC_PARTS=${PARTS:-100} step kernels 300 "${pytest[@]}" -p on_gpu -n "$jobs" "${kernels[@]}"
    LUMC_PARTS=2 step race-check 120 compute-sanitizer --tool racecheck --error-exitcode 9 \
      "${pytest[@]}" -p on_gpu "${kernels[0]}" "${fewer[@]}"
    step estimate 240 "$python" bench/gpu_race.py --estimate -o "$folder/estimate.json"
    step search 600 "$python" bench/gpu_race.py --budget "${BUDGET:-20s}" -o "$folder/search.json"
    ;;
  amd)
    steps=${STEPS:-doctor bundles times}
    rocminfo 2> /dev/null | grep -E 'Marketing Name|^ +Name: +gfx' | tee -a "$report"
    step doctor 60 "$python" -m lumc doctor
    step bundles 300 "${pytest[@]}" -n "$jobs" tests/gpu/test_on_amd.py
    step times 300 bash -c 'timed "$0"' "$("$python" -c "$OF_FAMILY")"
    ;;
  apple)
    steps=${STEPS:-doctor bundles times}
    { sysctl -n machdep.cpu.brand_string; sw_vers -productVersion; } 2> /dev/null | tee -a "$report"
    step doctor 120 "$python" -m lumc doctor --report "$folder/report.json"
    step bundles 300 "${pytest[@]}" -n "$jobs" tests/gpu/test_on_mac.py
    step times 300 bash -c 'timed "$0"' metal
    ;;
  *) echo "gpu_day: GPU is nvidia, amd or apple, not $gpu" >&2; exit 2 ;;
esac
for rows in estimate search times; do
  [[ -s $folder/$rows.txt ]] && { echo; echo "$rows"; cat "$folder/$rows.txt"; } >> "$report"
done
exit "$failed"
