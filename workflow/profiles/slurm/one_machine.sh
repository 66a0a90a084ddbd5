#!/usr/bin/env bash
# A SLURM of this machine alone, to try the profile with. Everything it keeps is in one folder.
#   apt-get install slurmctld slurmd slurm-client munge
#   workflow/profiles/slurm/one_machine.sh start FOLDER     as root
#   workflow/profiles/slurm/one_machine.sh stop FOLDER
# Only a link to its slurm.conf lies where SLURM looks for it: Snakemake's jobs forget SLURM_CONF.
set -euo pipefail
command=${1:-} folder=$(realpath -m "${2:?one_machine.sh start|stop FOLDER}")
conf=$folder/slurm.conf known=/etc/slurm/slurm.conf

stop() {
  [ "$(readlink "$known")" != "$conf" ] || rm "$known"
  for daemon in slurmctld slurmd munged; do
    [ -s "$folder/$daemon.pid" ] || continue
    pid=$(<"$folder/$daemon.pid")
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$daemon" ] || continue
    kill "$pid"
    for _ in {1..100}; do [ -e "/proc/$pid" ] || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
  done
}

start() {
  if [ -e "$known" ]; then
    echo "$known exists: this machine has a SLURM already" >&2
    exit 1
  fi
  mkdir -p "$folder"/{state,spool}
  chmod 755 "$folder"
  touch "$folder/jobs.txt"
  ( umask 077; head -c 128 /dev/urandom >"$folder/munge.key" )
  # One free port each, far from SLURM's own, so that several such SLURMs do not meet.
  read -r control node < <(python3 -c 'import socket
open = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*[one.getsockname()[1] for one in open])')
  cores=$(nproc)
  memory=$(($(awk '/^MemTotal/ {print $2}' /proc/meminfo) / 1024 - 512))
  cat >"$conf" <<CONF
ClusterName=one
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$control
SlurmdPort=$node
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
# Processes are followed by their ancestors: no cgroups are needed.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0
ReturnToService=2
# What is over stays to be asked for an hour, and for good in a file that "sacct --completion" reads.
MinJobAge=3600
JobCompType=jobcomp/filetxt
JobCompLoc=$folder/jobs.txt
NodeName=localhost NodeAddr=127.0.0.1 CPUs=$cores RealMemory=$memory State=UNKNOWN
PartitionName=local Nodes=localhost Default=YES MaxTime=INFINITE State=UP
CONF
  ln -sfn "$conf" "$known"
  munged --force --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/munge.seed"
  slurmctld -f "$conf"
  slurmd -N localhost -f "$conf"
  for _ in {1..100}; do
    [ "$(sinfo --noheader --format=%T 2>/dev/null)" = idle ] && break
    sleep 0.2
  done
  if [ "$(sinfo --noheader --format=%T)" != idle ]; then
    echo "SLURM did not start; its logs are in $folder" >&2
    stop
    exit 1
  fi
  sinfo
}

case $command in
  start) start ;;
  stop) stop ;;
  *) echo "one_machine.sh start|stop FOLDER" >&2; exit 2 ;;
esac
