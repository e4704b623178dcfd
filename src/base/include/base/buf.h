/*
 * Byte builders and readers for records, messages and keys. Both keep the first error: a sequence of puts or gets is
 * written without checks and tested once at the end.
 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Grows by itself; err is 0 or -ENOMEM. Integers are little-endian unless the name says be. */
struct wbuf {
    uint8_t *data; /* owned */
    size_t len, cap;
    int err;
};
void wbuf_done(struct wbuf *w);
/* Room for n bytes at the end, counted in; NULL on error. */
void *wbuf_add(struct wbuf *w, size_t n);
void wbuf_put(struct wbuf *w, const void *p, size_t n);
void wbuf_u8(struct wbuf *w, uint8_t v);
void wbuf_u16(struct wbuf *w, uint16_t v);
void wbuf_u32(struct wbuf *w, uint32_t v);
void wbuf_u64(struct wbuf *w, uint64_t v);
void wbuf_be32(struct wbuf *w, uint32_t v);
void wbuf_be64(struct wbuf *w, uint64_t v);
/* u32 length, then the bytes. */
void wbuf_blob(struct wbuf *w, const void *p, size_t n);

/* Reads within [p, end); past the end it returns zeroes and err becomes -EBADMSG. Borrows the bytes. */
struct rbuf {
    const uint8_t *p, *end;
    int err;
};
struct rbuf rbuf_of(const void *p, size_t n);
size_t rbuf_left(const struct rbuf *r);
/* A pointer to n bytes inside the buffer, or NULL. */
const void *rbuf_take(struct rbuf *r, size_t n);
void rbuf_get(struct rbuf *r, void *p, size_t n);
uint8_t rbuf_u8(struct rbuf *r);
uint16_t rbuf_u16(struct rbuf *r);
uint32_t rbuf_u32(struct rbuf *r);
uint64_t rbuf_u64(struct rbuf *r);
uint32_t rbuf_be32(struct rbuf *r);
uint64_t rbuf_be64(struct rbuf *r);
/* A blob of at most max bytes; the pointer is inside the buffer. Longer ones are an error. */
const void *rbuf_blob(struct rbuf *r, size_t max, size_t *ret_len);
/* 0 when there was no error and all was read, else -EBADMSG. */
int rbuf_end(const struct rbuf *r);

#endif
