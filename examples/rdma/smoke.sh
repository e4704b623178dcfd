#!/bin/sh
# Is RDMA there, and does it work? What the container and the CI job beside this file run; no privilege is needed.
set -eu

uroce doctor ib_write_bw
uroce run -- ibv_devinfo

# Both ends of a program on this machine. A server is ready when it listens.
pair() {
    port=$1; shift
    uroce run -- "$@" >server.log 2>&1 &
    until grep -q ":$(printf %04X "$port") 0*:0000 0A" /proc/net/tcp /proc/net/tcp6; do
        kill -0 $! || { cat server.log; return 1; }
        sleep 0.05
    done
    uroce run -- "$@" 127.0.0.1
    wait $!
}

cd "$(mktemp -d)"
pair 18515 ibv_rc_pingpong -g 0 -c
pair 18515 ib_write_bw -F --report_gbits -n 500
pair 18515 ib_read_lat -F -n 500
# What went over the wire, for Wireshark.
uroce capture -o packets.pcapng --filter tx -- ibv_ud_pingpong -g 0 -n 3 >server.log 2>&1 &
until grep -q ":4853 0*:0000 0A" /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done
uroce run -- ibv_ud_pingpong -g 0 -n 3 127.0.0.1
wait $!
ls -l packets.pcapng*
echo "RDMA works here"
