#!/usr/bin/env bash
# The suites of programs over host, agent and server: git by default, all of them extended.
set -euo pipefail
suites=(git)
[ -z "${PENSTOCK_EXTENDED:-}" ] || suites+=(programs fio crash bigdir scale training space)
for s in "${suites[@]}"; do
    echo "# $s"
    code=0
    bash "$(dirname "$0")/$s.sh" penstock || code=$?
    [ "$code" = 0 ] || [ "$code" = 77 ] || exit "$code"
done
