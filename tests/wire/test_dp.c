/* The data-plane codec against itself, against golden bytes, and against a decoder written from docs/protocol.md. */
#include "dp_random.h"

#include "base/util.h"
#include "../lib/seed.h"

#include <errno.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

static const char *decoder, *golden;
static uint64_t seed;
static uint8_t session_key[DP_KEY_BYTES], ticket[48];
static struct pst_mac *mac;

static size_t encode_request(const struct dp_request *q, uint8_t *buf)
{
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];
    int n = dp_encode_request(mac, q, head, iov);

    assert_true(n >= 1 && n <= 3);
    return dp_join(iov, n, buf);
}

static size_t encode_reply(const struct dp_reply *p, uint8_t *buf)
{
    uint8_t head[DP_HEAD_MAX];
    struct iovec iov[3];
    int n = dp_encode_reply(mac, p, head, iov);

    assert_true(n >= 1 && n <= 3);
    return dp_join(iov, n, buf);
}

/* ---- as text, as the decoder prints it ---- */

static const char *const names[DP_OPCODES] = {NULL,     "BIND",       "UNBIND",        "READ",      "WRITE",
                                              "PUNCH",  "ALLOCATE",   "SEEK_DATA",     "SEEK_HOLE", "FSYNC",
                                              "SYNCFS", "CHUNK_READ", "CHUNK_REPLACE", "PING"};

static void hex(FILE *f, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        fprintf(f, "%02x", ((const uint8_t *)p)[i]);
}

static void print_request(FILE *f, const struct dp_request *q)
{
    fprintf(f,
            "op=%s flags=%u msgno=%" PRIu64 " tag=%" PRIu64 " cap=%u origin=%u slot=%u seq=%" PRIu64 " ino=%" PRIu64
            " offset=%" PRIu64 " length=%" PRIu64 " version=%" PRIu64 " new_size=%" PRIu64 " meta=",
            names[q->opcode], q->flags, q->msgno, q->tag, q->cap, q->origin, q->slot, q->seq, q->ino, q->offset,
            q->length, q->version, q->new_size);
    hex(f, q->meta, q->meta_len);
    fprintf(f, " segs=");
    for (unsigned i = 0; i < q->nsegs; i++)
        fprintf(f, "%s%" PRIu64 ":%" PRIu64 ":%u", i ? "," : "", q->seg[i].addr, q->seg[i].key, q->seg[i].len);
    fprintf(f, " payload=");
    hex(f, q->payload, q->payload_len);
    fprintf(f, "\n");
}

static void print_reply(FILE *f, const struct dp_reply *p)
{
    fprintf(f,
            "op=%s status=%d msgno=%" PRIu64 " tag=%" PRIu64 " result=%" PRIu64 " offset=%" PRIu64 " version=%" PRIu64
            " size=%" PRIu64 " used=%" PRIu64 " change=%" PRIu64 " mtime=%" PRId64 " meta=",
            names[p->opcode], p->status, p->msgno, p->tag, p->result, p->offset, p->version, p->size, p->used,
            p->change, p->mtime_ns);
    hex(f, p->meta, p->meta_len);
    fprintf(f, " payload=");
    hex(f, p->payload, p->payload_len);
    fprintf(f, "\n");
}

static void print_input(FILE *f, const char *kind, const uint8_t *msg, size_t len)
{
    hex(f, session_key, sizeof session_key);
    fprintf(f, " ");
    hex(f, ticket, sizeof ticket);
    fprintf(f, " %s ", kind);
    hex(f, msg, len);
    fprintf(f, "\n");
}

/* What our decoder says, in the other's words. */
static void print_decoded(FILE *f, bool request, const uint8_t *msg, size_t len)
{
    struct dp_request q;
    struct dp_reply p;
    uint8_t *copy = malloc(len ? len : 1); /* a sanitizer sees a read past the end */
    int r;

    assert_non_null(copy);
    memcpy(copy, msg, len);
    r = request ? dp_decode_request(mac, copy, len, &q) : dp_decode_reply(mac, copy, len, &p);
    if (r)
        fprintf(f, "refused\n");
    else if (request)
        print_request(f, &q);
    else
        print_reply(f, &p);
    free(copy);
}

/* ---- tests ---- */

static void a_message_comes_out_as_it_went_in(void **state)
{
    static uint8_t room[DP_INLINE_MAX], buf[DP_MSG_MAX];
    struct rng r;
    char *a_text, *b_text;
    size_t a_len, b_len;

    (void)state;
    rng_seed(&r, seed);
    for (int i = 0; i < 20000; i++) {
        FILE *a = open_memstream(&a_text, &a_len), *b = open_memstream(&b_text, &b_len);
        struct dp_request q, q2;
        struct dp_reply p, p2;
        size_t len;

        if (i & 1) {
            dp_random_request(&r, room, &q);
            len = encode_request(&q, buf);
            assert_int_equal(dp_decode_request(mac, buf, len, &q2), 0);
            print_request(a, &q);
            print_request(b, &q2);
        } else {
            dp_random_reply(&r, room, &p);
            len = encode_reply(&p, buf);
            assert_int_equal(dp_decode_reply(mac, buf, len, &p2), 0);
            print_reply(a, &p);
            print_reply(b, &p2);
        }
        fclose(a);
        fclose(b);
        assert_string_equal(a_text, b_text);
        free(a_text);
        free(b_text);
    }
}

/* Every cut and every flipped bit of one message; the caller's struct is untouched. */
static void spoil(const uint8_t *msg, size_t len, bool request)
{
    uint8_t *copy = malloc(len);
    struct dp_request q, q0;
    struct dp_reply p, p0;

    assert_non_null(copy);
    memset(&q0, 0x5a, sizeof q0);
    memset(&p0, 0x5a, sizeof p0);
    q = q0;
    p = p0;
    for (size_t n = 0; n < len; n++) {
        uint8_t *cut = malloc(n ? n : 1);

        assert_non_null(cut);
        memcpy(cut, msg, n);
        assert_true((request ? dp_decode_request(mac, cut, n, &q) : dp_decode_reply(mac, cut, n, &p)) < 0);
        free(cut);
    }
    memcpy(copy, msg, len);
    for (size_t bit = 0; bit < 8 * len; bit++) {
        int e;

        copy[bit / 8] ^= (uint8_t)(1u << (bit % 8));
        e = request ? dp_decode_request(mac, copy, len, &q) : dp_decode_reply(mac, copy, len, &p);
        assert_int_equal(e, bit < 8 ? -EPROTO : -EACCES);
        copy[bit / 8] ^= (uint8_t)(1u << (bit % 8));
    }
    assert_memory_equal(&q, &q0, sizeof q);
    assert_memory_equal(&p, &p0, sizeof p);
    free(copy);
}

static void every_cut_and_every_flipped_bit_is_refused(void **state)
{
    static uint8_t room[DP_INLINE_MAX], buf[DP_MSG_MAX];
    bool seen[2][DP_OPCODES] = {{0}};
    struct dp_request q;
    struct dp_reply p;
    struct rng r;
    int left = 2 * (DP_OPCODES - 1);

    (void)state;
    rng_seed(&r, seed ^ 1);
    while (left) {
        dp_random_request(&r, room, &q);
        dp_random_reply(&r, room, &p);
        if (!seen[0][q.opcode] && q.payload_len < 300) {
            spoil(buf, encode_request(&q, buf), true);
            seen[0][q.opcode] = true;
            left--;
        }
        if (!seen[1][p.opcode] && p.payload_len < 300) {
            spoil(buf, encode_reply(&p, buf), false);
            seen[1][p.opcode] = true;
            left--;
        }
    }
}

static void a_message_counts_in_its_direction_and_on_its_connection_only(void **state)
{
    uint8_t buf[DP_MSG_MAX], other_key[DP_KEY_BYTES], other_ticket[48];
    struct dp_request q = {.msgno = 1, .opcode = DP_PING};
    struct dp_reply p = {.msgno = 1, .opcode = DP_PING};
    struct pst_mac *other;
    size_t len;

    (void)state;
    memcpy(other_ticket, ticket, sizeof ticket);
    other_ticket[47] ^= 1;
    assert_int_equal(dp_conn_key(session_key, other_ticket, sizeof other_ticket, other_key), 0);
    other = pst_mac_new(other_key, sizeof other_key);
    assert_non_null(other);
    len = encode_request(&q, buf);
    assert_int_equal(dp_decode_request(other, buf, len, &q), -EACCES);
    assert_int_equal(dp_decode_reply(mac, buf, len, &p), -EACCES);
    len = encode_reply(&p, buf);
    assert_int_equal(dp_decode_reply(other, buf, len, &p), -EACCES);
    assert_int_equal(dp_decode_request(mac, buf, len, &q), -EACCES);
    pst_mac_free(other);
}

/* ---- the other decoder ---- */

static int run_decoder(const char *in, const char *out)
{
    char cmd[600];
    int status;

    snprintf(cmd, sizeof cmd, "'%s' < '%s' > '%s'", decoder, in, out);
    status = system(cmd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void compare_files(const char *a, const char *b)
{
    FILE *fa = fopen(a, "r"), *fb = fopen(b, "r");
    char *la = NULL, *lb = NULL;
    size_t na = 0, nb = 0;
    ssize_t ra, rb;
    long line = 0;

    assert_true(fa && fb);
    do {
        line++;
        ra = getline(&la, &na, fa);
        rb = getline(&lb, &nb, fb);
        if (ra != rb || (ra > 0 && memcmp(la, lb, (size_t)ra)))
            fail_msg("line %ld (seed %" PRIu64 "): %s, the other decoder: %s", line, seed, ra > 0 ? la : "end",
                     rb > 0 ? lb : "end");
    } while (ra > 0);
    free(la);
    free(lb);
    fclose(fa);
    fclose(fb);
}

/* What goes into the other decoder, and what it is to answer; compared at the end. */
struct comparison {
    char in[32], out[32], ours[32];
    FILE *fin, *four;
};

static void compare_begin(struct comparison *c)
{
    int out_fd;

    *c = (struct comparison){"/tmp/pst-dp-in-XXXXXX", "/tmp/pst-dp-out-XXXXXX", "/tmp/pst-dp-our-XXXXXX", NULL, NULL};
    c->fin = fdopen(mkstemp(c->in), "w");
    c->four = fdopen(mkstemp(c->ours), "w");
    out_fd = mkstemp(c->out);
    assert_true(c->fin && c->four && out_fd >= 0);
    close(out_fd);
}

static void compare_end(struct comparison *c)
{
    fclose(c->fin);
    fclose(c->four);
    assert_int_equal(run_decoder(c->in, c->out), 0);
    compare_files(c->ours, c->out);
    unlink(c->in);
    unlink(c->out);
    unlink(c->ours);
}

/* Half of them changed in a few bytes of the header, with the MAC made right: the rules themselves are compared. */
static void both_decoders_agree_on_every_message(void **state)
{
    static uint8_t room[DP_INLINE_MAX], buf[DP_MSG_MAX + 8];
    int count = getenv("PENSTOCK_EXTENDED") ? 200000 : 6000;
    struct comparison c;
    struct rng r;

    (void)state;
    compare_begin(&c);
    rng_seed(&r, seed ^ 2);
    for (int i = 0; i < count; i++) {
        bool request = rng_below(&r, 3) != 0;
        struct dp_request q;
        struct dp_reply p;
        size_t len;

        dp_random_request(&r, room, &q);
        dp_random_reply(&r, room, &p);
        if (rng_below(&r, 8) && (q.payload_len > 64 || p.payload_len > 64))
            continue;
        len = request ? encode_request(&q, buf) : encode_reply(&p, buf);
        if (rng_below(&r, 2)) {
            for (uint64_t k = 1 + rng_below(&r, 2); k; k--) {
                size_t at = (size_t)rng_below(&r, min_u64(len - DP_MAC_BYTES, 150));
                static const uint8_t some[] = {0, 1, 0x7f, 0x80, 0xff};

                if (rng_below(&r, 2))
                    buf[at] = some[rng_below(&r, 5)];
                else
                    buf[at] ^= (uint8_t)(1u << rng_below(&r, 8));
            }
            if (!rng_below(&r, 8))
                len -= (size_t)min_u64(len - DP_MAC_BYTES, rng_below(&r, 24));
            if (rng_below(&r, 16))
                dp_remac(mac, request ? 'C' : 'S', buf, len);
        }
        print_input(c.fin, request ? "request" : "reply", buf, len);
        print_decoded(c.four, request, buf, len);
    }
    compare_end(&c);
}

static const struct dp_request golden_requests[] = {
    {.msgno = 1, .tag = 0x1122334455667788, .opcode = DP_BIND, .cap = 9, .payload = "capability", .payload_len = 10},
    {.msgno = 2,
     .tag = 2,
     .opcode = DP_READ,
     .cap = 9,
     .ino = 77,
     .offset = 4096,
     .length = 12288,
     .nsegs = 2,
     .seg = {{0x7f0000001000, 0xa1a2a3a4a5a6a7a8, 8192}, {0x7f0000010000, 0xb1b2b3b4b5b6b7b8, 4096}}},
    {.msgno = 3,
     .tag = 3,
     .opcode = DP_WRITE,
     .flags = DP_F_INLINE | DP_F_APPEND | DP_F_DSYNC,
     .cap = 9,
     .ino = 77,
     .slot = 5,
     .seq = 1234567890123,
     .length = 11,
     .payload = "hello world",
     .payload_len = 11},
    {.msgno = 4,
     .tag = 4,
     .opcode = DP_CHUNK_REPLACE,
     .flags = DP_F_GROW,
     .cap = 9,
     .ino = 77,
     .slot = 6,
     .seq = 1,
     .offset = 3,
     .length = 1048576,
     .version = 17,
     .new_size = 4194304,
     .meta_len = 5,
     .meta = "meta!",
     .nsegs = 1,
     .seg = {{0, 1, 1048576}}},
    {.msgno = UINT64_MAX, .tag = 5, .opcode = DP_PING},
    {.msgno = 6,
     .tag = 6,
     .opcode = DP_WRITE,
     .flags = DP_F_EXPORTED | DP_F_DSYNC,
     .cap = 9,
     .ino = 77,
     .slot = 6,
     .seq = 2,
     .offset = 65536,
     .length = 12289,
     .nsegs = 2,
     .seg = {{0x2000, 3, 12288}, {0x7ff, 4, 1}}},
    {.msgno = 7, .tag = 7, .opcode = DP_PUNCH, .cap = 9, .ino = 77, .origin = 0xabcd, .slot = 127, .seq = 3,
     .offset = 8192, .length = 4096},
    {.msgno = 8,
     .tag = 8,
     .opcode = DP_READ,
     .flags = DP_F_THIRD,
     .cap = 9,
     .ino = 77,
     .offset = 65536,
     .length = 12289,
     .nsegs = 3,
     .seg = {{0x1122334455667788, 0x8000000000000003, 0}, {0x2000, 3, 12288}, {0x7ff, 4, 1}}},
};

static const struct dp_reply golden_replies[] = {
    {.msgno = 2, .tag = 2, .opcode = DP_READ, .result = 5, .payload = "bytes", .payload_len = 5},
    {.msgno = 3,
     .tag = 3,
     .opcode = DP_WRITE,
     .result = 11,
     .offset = 100,
     .size = 111,
     .used = 4096,
     .change = 8,
     .mtime_ns = 1700000000123456789},
    {.msgno = 4, .tag = 4, .opcode = DP_CHUNK_REPLACE, .status = -ESTALE, .version = 18},
};

/* Each line of the file: input of the decoder, a tab, its output. */
static void golden_bytes_have_not_changed(void **state)
{
    struct comparison c;
    FILE *f = fopen(golden, "r");
    char *line = NULL, *text;
    uint8_t buf[DP_MSG_MAX];
    size_t room = 0, text_len, n = 0;

    (void)state;
    assert_non_null(f);
    compare_begin(&c);
    for (ssize_t len; (len = getline(&line, &room, f)) > 0; n++) {
        bool request = n < ARRAY_SIZE(golden_requests);
        char *tab = strchr(line, '\t');
        FILE *made = open_memstream(&text, &text_len);

        assert_true(tab && n < ARRAY_SIZE(golden_requests) + ARRAY_SIZE(golden_replies));
        *tab = '\0';
        print_input(made, request ? "request" : "reply", buf,
                    request ? encode_request(&golden_requests[n], buf)
                            : encode_reply(&golden_replies[n - ARRAY_SIZE(golden_requests)], buf));
        fclose(made);
        text[text_len - 1] = '\0';
        assert_string_equal(text, line);
        fprintf(c.fin, "%s\n", text);
        fprintf(c.four, "%s", tab + 1);
        free(text);
    }
    assert_int_equal(n, ARRAY_SIZE(golden_requests) + ARRAY_SIZE(golden_replies));
    free(line);
    fclose(f);
    compare_end(&c);
}

/* For a new version of the protocol: test_dp --golden prints the inputs. */
static int print_golden(void)
{
    uint8_t buf[DP_MSG_MAX];

    for (size_t i = 0; i < ARRAY_SIZE(golden_requests); i++)
        print_input(stdout, "request", buf, encode_request(&golden_requests[i], buf));
    for (size_t i = 0; i < ARRAY_SIZE(golden_replies); i++)
        print_input(stdout, "reply", buf, encode_reply(&golden_replies[i], buf));
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_comes_out_as_it_went_in),
        cmocka_unit_test(every_cut_and_every_flipped_bit_is_refused),
        cmocka_unit_test(a_message_counts_in_its_direction_and_on_its_connection_only),
        cmocka_unit_test(both_decoders_agree_on_every_message),
        cmocka_unit_test(golden_bytes_have_not_changed),
    };
    uint8_t key[DP_KEY_BYTES];
    int r;

    for (size_t i = 0; i < sizeof session_key; i++)
        session_key[i] = (uint8_t)(i * 3 + 1);
    for (size_t i = 0; i < sizeof ticket; i++)
        ticket[i] = (uint8_t)(200 - i);
    if (dp_conn_key(session_key, ticket, sizeof ticket, key))
        return 1;
    mac = pst_mac_new(key, sizeof key);
    if (argc == 2 && !strcmp(argv[1], "--golden"))
        return print_golden();
    if (argc != 3 || !mac)
        return 2;
    decoder = argv[1];
    golden = argv[2];
    seed = seed_new();
    r = cmocka_run_group_tests(tests, NULL, NULL);
    pst_mac_free(mac);
    return r;
}
