#!/usr/bin/env bash
# Of a command that was found by PATH: the libraries of provider uroce, and the holder's program, are those beside it, not
# those of where it was started. UROCE_QP is a program that has uroce built in.
. "$(dirname "$0")/../lib/serve.sh"
unset UROCE_LIBDIR
mkdir -p "$T/here" "$T/roce/verbs"
: >"$T/here/penstock"
for l in libibverbs librdmacm; do echo planted >"$T/roce/verbs/$l.so.1"; done
cd "$T/here"
PATH=$(dirname "$PENSTOCK"):$PATH
PENSTOCK=penstock

PENSTOCK_TEST_PROVIDER=uroce serve --dev "$T/store"
expect 0 penstock status "$SERVER"
grep -q 'data.verbs.*uroce' "$T/out" || fail "not over uroce: $(cat "$T/out")"

: >uroce_qp
printf '#!/bin/sh\n: >%s/ran\n' "$T" >uroce
chmod +x uroce
PATH=$(dirname "$UROCE_QP"):$PATH uroce_qp 4096 </dev/null >"$T/out" 2>&1 || true
[ ! -e "$T/ran" ] || fail "a file of the directory it was started in was run as the holder"
