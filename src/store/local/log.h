/*
 * The log on disk. A segment is a file of fixed size, zeroed once and used again and again: a header block, then
 * records. Records follow one another at multiples of 8 bytes; each write begins at a multiple of 4 KiB, the gap before
 * it is zeroes. All integers are little-endian.
 *
 *   segment header   magic u32, version u32, uuid[16], seq u64, first lsn u64, crc u32 (of what is before it)
 *   record           magic u32, kind u32, store tag u64, seq u64, lsn u64, durable u64, length u32, crc u32,
 *                    8 zero bytes, payload
 *
 * seq numbers the uses of segments, so that what an earlier use left behind never passes. `durable` is the last LSN
 * that was known to be on disk when the record was written: the proof that records up to there were acknowledged.
 * A mark is a record without payload and LSN of its own: it only carries `durable`.
 */
#ifndef LOCAL_LOG_H
#define LOCAL_LOG_H

#include "parts.h"

#include "base/endian.h"

#define LOG_BLOCK       4096u
#define SEGMENT_MAGIC   0x4c545350u /* "PSTL" */
#define SEGMENT_VERSION 1u
#define RECORD_MAGIC    0x52545350u /* "PSTR" */
#define SEGMENTS_MAX    65536u

enum record_kind { RECORD_TXN = 1, RECORD_MARK = 2 };

struct record {
    le32 magic, kind;
    le64 tag, seq, lsn, durable;
    le32 len, crc; /* crc: of the header with crc 0, and the payload */
    le64 zero;
};
_Static_assert(sizeof(struct record) == WAL_RECORD_HEADER, "the queue's header is the file's");

struct segment {
    int fd;
    uint32_t name; /* log/%08x */
    uint64_t seq;  /* 0: never used, or damaged */
    uint64_t first_lsn, last_lsn;
    uint64_t off;  /* the next write goes here */
    bool damaged;  /* its header is neither valid nor zero */
};

struct wal {
    pthread_mutex_t mu; /* the lists of segments; the writer alone touches `cur` and its fields */
    int dir_fd;
    bool direct;
    struct segment **used; /* ascending seq; the last is the one being written */
    struct segment **spare;
    size_t nused, nspare, cap_used, cap_spare;
    struct segment *cur; /* in `used`; NULL before the first write after open */
    uint32_t next_name;
    uint64_t next_seq;
    uint64_t tag;
    uint8_t *frame; /* LOG_FRAME bytes, aligned */
    uint64_t resume_seq, resume_off; /* where replay ended */
};

/* The bytes of one record in the file, without its payload's padding to 8. */
static inline uint64_t record_bytes(uint32_t len)
{
    return align_up(sizeof(struct record) + len, 8);
}
uint32_t record_crc(const struct record *h, const void *payload, size_t len);
/* 0 and the fields, -EBADMSG (damaged or another store's), -ENOENT (all zero: never written). */
int segment_header_decode(const uint8_t *p, const uint8_t uuid[16], uint64_t *ret_seq, uint64_t *ret_first);
void segment_path(const struct engine *e, const struct segment *s, char *ret, size_t size);

#endif
