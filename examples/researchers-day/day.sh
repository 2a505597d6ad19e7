#!/usr/bin/env bash
# The day of a researcher on the command line: ./day.sh ROWS
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
columns='dataset="file" data-file="orders.csv" user-column="customer" item-column="article" time-column="bought at"
title-column="title" skip-broken-rows=true min-interactions=5'
columns=${columns//$'\n'/ }

step() {
  local name=$1
  TIMEFORMAT="$name: %0R s, %0U s of them computing"
  shift
  time "$@" > "log-$name.txt" 2>&1 || { cat "log-$name.txt"; exit 1; }
}

step data      python "$here/make_data.py" orders.csv "$1"
step look      bouquet data stats -c "$columns"
step search    bouquet search "$here/search.toml" --out search --engine local
step run       bouquet run --config search/chosen/fedavg.toml -c 'max-users=0' --out fedavg --engine local --compare-with 'popularity ease'
step counts    bouquet run -c "$columns strategy=\"sequential-rules\"" --out counts --engine local --compare-with ''
step compare   bouquet compare counts fedavg
step report    bouquet report counts fedavg --html report.html
step recommend bouquet recommend --run counts --user c00001 -k 10
step export    bouquet export counts --out model
