#!/bin/bash
#SBATCH --job-name=oncurve
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=9
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#
# Submit it where the command below finds its files: sbatch FILE. All nodes need this folder, and oncurve with Ray.
# Five minutes before the time limit the run writes a checkpoint and ends, and the job queues again: it continues there.
# Edit the lines above, the command and CPUS: workers and ranks need one processor each, and so does the command.
set -u

TRAIN=(oncurve train gsm8k cluster.kind=ray cluster.rollout_workers=14 cluster.learner_ranks=2 data.path=train.jsonl)
TRAIN+=(--out runs/gsm8k --resume-if-there)
CPUS=9  # per node
START_SECONDS=600
TEMPORARY="/tmp/ray-$SLURM_JOB_ID"

export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"  # of this job alone; srun hands it to the nodes
export RAY_AUTH_TOKEN

run="" again=no started=()

finish() {
    if [ "$again" = yes ] && [ "$1" -gt 128 ]; then
        scontrol requeue "$SLURM_JOB_ID" || echo "oncurve: submit the job again; the run goes on" >&2
    fi
    exit "$1"
}

forward() {  # SIGTERM lets the run write a checkpoint and end
    again="$1"
    if [ -n "$run" ]; then kill -TERM "$run" 2>/dev/null; else finish 143; fi
}

end_ray() {
    if [ "${#started[@]}" -gt 0 ]; then
        kill -TERM "${started[@]}" 2>/dev/null
        for _ in $(seq 45); do
            kill -0 "${started[@]}" 2>/dev/null || break
            sleep 1
        done
        kill -KILL "${started[@]}" 2>/dev/null
    fi
    rm -rf -- "$TEMPORARY"
}

fail() {
    echo "oncurve: $1" >&2
    exit 1
}

alive() {
    ray status --address "$address" 2>/dev/null | grep -c '^ *1 node_'
}

wait_for() {  # $1: nodes that have joined
    until [ "$(alive)" -ge "$1" ]; do
        for process in "${started[@]}"; do
            kill -0 "$process" 2>/dev/null || fail "Ray has ended on a node; its messages are above"
        done
        [ "$SECONDS" -lt "$START_SECONDS" ] || fail "not all nodes have joined Ray within $START_SECONDS seconds"
        sleep 2 &
        wait "$!"
    done
}

trap end_ray EXIT
trap 'forward yes' USR1
trap 'forward no' TERM INT

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
[ "${#hosts[@]}" -gt 0 ] || fail "scontrol names no nodes"
head="${hosts[0]}"
# As another node sees it: a machine's own hosts file may call it 127.0.1.1.
ip="$(srun --overlap --nodes=1 --ntasks=1 --nodelist="${hosts[-1]}" getent ahostsv4 "$head" | awk 'NR == 1 {print $1}')"
[ -n "$ip" ] || fail "no node knows the address of $head"
port=$((20000 + SLURM_JOB_ID % 10000))
address="$ip:$port"

srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="$CPUS" --nodelist="$head" \
    ray start --head --node-ip-address="$ip" --port="$port" --num-cpus="$CPUS" --num-gpus=0 \
    --temp-dir="$TEMPORARY" --include-dashboard=false --block &
started+=("$!")
wait_for 1
others=$((${#hosts[@]} - 1))
if [ "$others" -gt 0 ]; then
    srun --overlap --nodes="$others" --ntasks="$others" --cpus-per-task="$CPUS" --exclude="$head" \
        ray start --address="$address" --num-cpus="$CPUS" --num-gpus=0 --block &
    started+=("$!")
fi
wait_for "${#hosts[@]}"

"${TRAIN[@]}" cluster.address="$address" &
run="$!"
while kill -0 "$run" 2>/dev/null; do  # a signal ends the wait, and the run is still writing its checkpoint
    wait "$run"
done
wait "$run"
finish "$?"
