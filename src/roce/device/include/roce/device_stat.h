/*
 * Live counters of a process's devices, for `uroce stat`. Each open device listens on a Unix socket (SOCK_SEQPACKET)
 * with an abstract name, "uroce-stat-" and 16 random digits, so that nothing is left when its process is killed; the
 * device's helper thread answers, to the same user (and root) alone, a few readers at a time. Whoever connects gets one
 * stat_device, then stat_pairs until `last`. A reader that does not read costs nothing, and loses its place to others.
 */
#ifndef ROCE_DEVICE_STAT_H
#define ROCE_DEVICE_STAT_H

#include "uroce/types.h"

#define STAT_PREFIX     "uroce-stat-"
#define STAT_MAGIC      0x75727331u /* "urs1": another layout has another number */
#define STAT_GIDS       16
#define STAT_PAIRS      16 /* queue pairs of a message */
#define STAT_TIMEOUT_NS 2000000000u

struct stat_device {
    uint32_t magic, gids;
    char name[32];
    uint64_t node_guid, open_ns; /* open_ns: for how long it has been open */
    uint64_t objects;            /* of all kinds */
    union uroce_gid gid[STAT_GIDS];
    struct uroce_counters counters;
};

struct stat_pair {
    uint32_t qpn, dest_qpn;
    uint32_t type, state; /* enum uroce_qp_type, uroce_qp_state */
    uint32_t connected;   /* the rest holds */
    uint32_t mtu_bytes, selective_repeat;
    char port[8];
    union uroce_gid local, remote;
    struct uroce_counters counters;
};

struct stat_pairs {
    uint32_t magic, n, last, reserved;
    struct stat_pair at[STAT_PAIRS];
};

#endif
