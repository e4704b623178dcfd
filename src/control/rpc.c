/* What both sides of the wrapper need: start-up, addresses, buffers. */
#include "rpc_priv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void init_once(void)
{
    /*
     * TLS 1.3 only: this gRPC has no setting for it in C, and asks OpenSSL for 1.2 and up. Its documented list of
     * suites for TLS 1.2 is cut to one that needs a pre-shared key, which neither side has, so that 1.2 never
     * completes; the suites of 1.3 are not in this list.
     */
    setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", 1);
    setenv("GRPC_VERBOSITY", "NONE", 0); /* its own lines would say what our errors say, once per attempt */
    grpc_init();
}

void rpc_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_once);
}

/* ---- addresses ---- */

/* Splits "host:port" or "[v6]:port"; returns the port or -EINVAL. */
static int split(const char *addr, char *host, size_t size)
{
    const char *colon = strrchr(addr, ':'), *start = addr, *end = colon;
    char *rest;
    unsigned long port;

    if (!colon || colon == addr || colon[1] < '0' || colon[1] > '9')
        return -EINVAL;
    if (*addr == '[') {
        start++;
        end--;
        if (*end != ']')
            return -EINVAL;
    } else if (memchr(addr, ':', (size_t)(colon - addr))) {
        return -EINVAL; /* an IPv6 address needs its brackets */
    }
    port = strtoul(colon + 1, &rest, 10);
    if (*rest || port > 65535 || end <= start || (size_t)(end - start) >= size)
        return -EINVAL;
    memcpy(host, start, (size_t)(end - start));
    host[end - start] = 0;
    return (int)port;
}

bool rpc_addr_is_local(const char *addr)
{
    char host[256];
    struct in_addr v4;
    struct in6_addr v6;

    if (!strncmp(addr, "unix:", 5))
        return true;
    if (split(addr, host, sizeof host) < 0)
        return false;
    if (!strcmp(host, "localhost"))
        return true;
    if (inet_pton(AF_INET, host, &v4) == 1)
        return (ntohl(v4.s_addr) >> 24) == 127;
    return inet_pton(AF_INET6, host, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

int rpc_addr_port(const char *addr)
{
    char host[256];
    return !strncmp(addr, "unix:", 5) ? 0 : split(addr, host, sizeof host);
}

int rpc_addr_target(const char *addr, char *buf, size_t size)
{
    char host[256];
    int n, port;

    if (!strncmp(addr, "unix:", 5)) {
        if (addr[5] != '/')
            return -EINVAL;
        n = snprintf(buf, size, "%s", addr);
        return n > 0 && (size_t)n < size && n < 5 + 108 ? 0 : -EINVAL;
    }
    port = split(addr, host, sizeof host);
    if (port < 0)
        return port;
    /* A name means 127.0.0.1 here whatever the resolver thinks of it: plain text is allowed for it. */
    if (!strcmp(host, "localhost"))
        strcpy(host, "127.0.0.1");
    n = strchr(host, ':') ? snprintf(buf, size, "[%s]:%d", host, port) : snprintf(buf, size, "%s:%d", host, port);
    return n > 0 && (size_t)n < size ? 0 : -EINVAL;
}

/* ---- messages ---- */

grpc_byte_buffer *rpc_bytes_new(const void *msg, size_t len)
{
    grpc_slice s = grpc_slice_from_copied_buffer(msg, len);
    grpc_byte_buffer *b = grpc_raw_byte_buffer_create(&s, 1);
    grpc_slice_unref(s);
    return b;
}

bool rpc_bytes_read(grpc_byte_buffer *b, grpc_slice *ret)
{
    grpc_byte_buffer_reader r;
    if (!grpc_byte_buffer_reader_init(&r, b))
        return false;
    *ret = grpc_byte_buffer_reader_readall(&r);
    grpc_byte_buffer_reader_destroy(&r);
    return true;
}

struct rpc_out *rpc_out_new(const void *msg, size_t len)
{
    struct rpc_out *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    list_init(&o->link);
    o->buf = rpc_bytes_new(msg, len);
    return o;
}

void rpc_out_free(struct rpc_out *o)
{
    if (!o)
        return;
    grpc_byte_buffer_destroy(o->buf);
    free(o);
}

void rpc_out_free_all(struct list *l)
{
    struct list *n;
    while ((n = list_pop_front(l)))
        rpc_out_free(list_entry(n, struct rpc_out, link));
}
