/* Pieces of a request's memory. */
#include "impl.h"

bool sge_check(struct qp_pd *pd, const struct uroce_sge *sge, uint32_t n, bool write)
{
    for (uint32_t i = 0; i < n; i++)
        if (sge[i].length && !mem_local(pd, sge[i].lkey, sge[i].addr, sge[i].length, write))
            return false;
    return true;
}

int sge_iov(struct qp_pd *pd, const struct uroce_sge *sge, uint32_t n, uint64_t off, uint64_t len, bool write,
            struct iovec *ret)
{
    int niov = 0;

    for (uint32_t i = 0; i < n && len; i++) {
        uint64_t take;
        uint8_t *p;

        if (off >= sge[i].length) {
            off -= sge[i].length;
            continue;
        }
        take = min_u64(sge[i].length - off, len);
        p = mem_local(pd, sge[i].lkey, sge[i].addr + off, take, write);
        if (!p)
            return -EFAULT;
        ret[niov].iov_base = p;
        ret[niov++].iov_len = (size_t)take;
        len -= take;
        off = 0;
    }
    return len ? -EFAULT : niov;
}

int rx_copy(const struct qp_rx *rx, void *dst, size_t from, size_t len)
{
    if (!len)
        return 0;
    if (rx->copy)
        return rx->copy(rx->copy_ctx, dst, from, len) ? -EIO : 0;
    memcpy(dst, rx->pkt.payload + from, len);
    return 0;
}

int rx_scatter(struct qp_pd *pd, const struct uroce_sge *sge, uint32_t n, uint64_t off, const struct qp_rx *rx)
{
    struct iovec iov[UROCE_SGE_MAX];
    int niov = sge_iov(pd, sge, n, off, rx->pkt.payload_len, true, iov);
    size_t at = 0;

    for (int i = 0; i < niov; i++) {
        int r = rx_copy(rx, iov[i].iov_base, at, iov[i].iov_len);
        if (r)
            return r;
        at += iov[i].iov_len;
    }
    return niov < 0 ? niov : 0;
}
