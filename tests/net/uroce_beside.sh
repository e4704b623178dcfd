#!/usr/bin/env bash
# Provider uroce for a command that was found by PATH: with the libraries beside it, not those of where it was started.
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
