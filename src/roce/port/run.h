/* Runs of packets (struct port_tx): what every port needs to take them apart. */
#ifndef PORT_RUN_H
#define PORT_RUN_H

#include "port/port.h"
#include "roce/wire_icrc.h"

/* The longest packet of a datagram: headers, 4096 bytes, room for slots, pad and ICRC. */
#define RUN_PACKET_MAX WIRE_PKT_MAX
#define RUN_PACKET_MIN 16u /* BTH and ICRC */

/* Bytes of packet k. */
static inline uint32_t run_bytes(const struct port_tx *tx, uint32_t k)
{
    return k + 1 < tx->npkts ? tx->seg_bytes : tx->last_bytes;
}

/* Bytes of the whole run, which is valid. */
static inline size_t run_total(const struct port_tx *tx)
{
    return (size_t)(tx->npkts - 1) * tx->seg_bytes + tx->last_bytes;
}

/* Sizes within the caps, and iov covers exactly the packets. */
bool run_valid(const struct port_tx *tx, uint32_t packet_bytes_max, uint32_t segs_max);
/* Packet k, gathered: run_bytes(tx, k) bytes. */
void run_copy(const struct port_tx *tx, uint32_t k, uint8_t *dst);
/* The first bytes of packet k, at most max; returns their number. */
size_t run_head(const struct port_tx *tx, uint32_t k, uint8_t *dst, size_t max);
/* The ICRC of a gathered packet that was made for one IPv4 id, made to fit another; shorter ones are left alone. */
void run_reid(const struct wire_icrc_tab *t, uint8_t *pkt, uint32_t len, uint16_t from, uint16_t to);
/* The pieces of len bytes from `offset` of an iovec that has them; their number, or -EMSGSIZE: more than max. */
int iov_slice(const struct iovec *iov, int niov, size_t offset, size_t len, struct iovec *ret, int max);

#endif
