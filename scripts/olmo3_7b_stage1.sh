#!/usr/bin/env bash
# OLMo 3 7B, stage 1, on an xpk cluster.
#
#   scripts/olmo3_7b_stage1.sh submit                submit one job and return
#   scripts/olmo3_7b_stage1.sh resume_until_done     submit again after each end, until STEPS_OVERRIDE updates are done
#
# Without arguments it prints the variables that it needs, as XPK_DEVICE_TYPE=tpu7x-512. XPK_DOCKER_IMAGE does as well
# as ECTYPE_IMAGE. Further arguments go to `ectype launch xpk`, as --dry-run.
#
# AI2 trained stage 1 in two parts under two schedules (docs/stages.md): a run XPK_RUN_NAME to step 597,046, and a run
# XPK_RUN_NAME-ext that goes on from it to the end of the epoch. Nothing is decided here; no pipeline's exit code counts.
set -euo pipefail

first_end=597046
end=1413814

needed=(
  XPK_CLUSTER XPK_PROJECT XPK_ZONE XPK_DEVICE_TYPE XPK_BASE_OUTPUT_DIR XPK_RUN_NAME OLMO_INDEX_PATH
  LOAD_PARAMETERS_PATH ECTYPE_IMAGE
)

usage() {
  echo "usage: $0 submit|resume_until_done [options of ectype launch xpk]"
  echo "set before:"
  printf '  %s\n' "${needed[@]}"
  echo "for a bucket: ECTYPE_MOUNT (gs://BUCKET=/PATH), ECTYPE_STORAGE (its name in xpk storage attach)"
  echo "may be set: XPK_NUM_SLICES, XPK_PRIORITY, STEPS_OVERRIDE"
}

command=${1:-}
case "$command" in
  submit | resume_until_done) ;;
  *)
    usage >&2
    exit 2
    ;;
esac
if ! command -v ectype >/dev/null; then
  echo "$0: ectype is not on PATH; activate the environment that it is installed in" >&2
  exit 2
fi
steps=${STEPS_OVERRIDE:-$end}
unset STEPS_OVERRIDE
if ((steps > end)); then
  echo "STEPS_OVERRIDE=$steps: AI2's epoch ends at $end, and so does this run" >&2
  steps=$end
fi
first=$((steps < first_end ? steps : first_end))

case "$command" in
  submit) exec ectype launch xpk submit olmo3-7b-stage1 --target-steps "$first" "${@:2}" ;;
  resume_until_done)
    ectype launch xpk resume-until-done olmo3-7b-stage1 --target-steps "$first" "${@:2}"
    if ((steps > first_end)); then
      unset LOAD_PARAMETERS_PATH
      exec ectype launch xpk resume-until-done olmo3-7b-stage1-extension --name "$XPK_RUN_NAME-ext" \
        --from "$XPK_BASE_OUTPUT_DIR/$XPK_RUN_NAME" --target-steps "$steps" "${@:2}"
    fi
    ;;
esac
