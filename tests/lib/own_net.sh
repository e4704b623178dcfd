#!/bin/sh
# own_net.sh COMMAND [ARG...]: runs it in a network namespace of its own, with loopback and an address on a link, as any machine
# has one: libfabric's verbs leaves machines alone that have nothing but loopback.
set -e
[ "${OWN_NET:-}" ] || exec env OWN_NET=1 unshare --net "$0" "$@"
unset OWN_NET
ip link set lo up
ip link add link0 type veth peer name link1
ip addr add 192.0.2.1/24 dev link0
ip addr add 2001:db8::1/64 dev link0 nodad
ip link set link0 up
ip link set link1 up
exec "$@"
