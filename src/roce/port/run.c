#include "run.h"

#include "base/endian.h"

#include <errno.h>
#include <string.h>

bool run_valid(const struct port_tx *tx, uint32_t packet_bytes_max, uint32_t segs_max)
{
    if (!tx->npkts || tx->npkts > segs_max || tx->niov < 0)
        return false;
    if (tx->last_bytes < RUN_PACKET_MIN || tx->last_bytes > packet_bytes_max)
        return false;
    if (tx->npkts > 1 && (tx->seg_bytes > packet_bytes_max || tx->seg_bytes < tx->last_bytes))
        return false;
    size_t total = 0;
    for (int i = 0; i < tx->niov; i++)
        if (__builtin_add_overflow(total, tx->iov[i].iov_len, &total))
            return false;
    return total == run_total(tx);
}

int iov_slice(const struct iovec *iov, int niov, size_t offset, size_t len, struct iovec *ret, int max)
{
    int n = 0;
    for (int i = 0; i < niov && len; i++) {
        if (offset >= iov[i].iov_len) {
            offset -= iov[i].iov_len;
            continue;
        }
        size_t part = iov[i].iov_len - offset;
        if (part > len)
            part = len;
        if (n == max)
            return -EMSGSIZE;
        ret[n++] = (struct iovec){(char *)iov[i].iov_base + offset, part};
        offset = 0;
        len -= part;
    }
    return n;
}

/* len bytes from `offset` of the run. */
static void gather(const struct port_tx *tx, size_t offset, size_t len, uint8_t *dst)
{
    for (int i = 0; i < tx->niov && len; i++) {
        if (offset >= tx->iov[i].iov_len) {
            offset -= tx->iov[i].iov_len;
            continue;
        }
        size_t part = tx->iov[i].iov_len - offset;
        if (part > len)
            part = len;
        memcpy(dst, (const char *)tx->iov[i].iov_base + offset, part);
        dst += part;
        offset = 0;
        len -= part;
    }
}

void run_copy(const struct port_tx *tx, uint32_t k, uint8_t *dst)
{
    gather(tx, (size_t)k * tx->seg_bytes, run_bytes(tx, k), dst);
}

size_t run_head(const struct port_tx *tx, uint32_t k, uint8_t *dst, size_t max)
{
    size_t len = run_bytes(tx, k) < max ? run_bytes(tx, k) : max;
    gather(tx, (size_t)k * tx->seg_bytes, len, dst);
    return len;
}

void run_reid(const struct wire_icrc_tab *t, uint8_t *pkt, uint32_t len, uint16_t from, uint16_t to)
{
    le32 icrc;
    if (from == to || len < RUN_PACKET_MIN || len % 4 || len > WIRE_PKT_MAX)
        return;
    memcpy(&icrc, pkt + len - sizeof icrc, sizeof icrc);
    icrc = put_le32(wire_icrc_reid(t, get_le32(icrc), len, from, to));
    memcpy(pkt + len - sizeof icrc, &icrc, sizeof icrc);
}
