/* Connections and messages of src/fabric between two processes over loopback. */
#include "fab_node.h"
#include "fab_suite.h"

#include "fab_int.h"

#include <poll.h>

/* ---- connecting ---- */

static bool admit_good(struct node *n, const void *data, size_t len)
{
    (void)n;
    CHECK(len <= FAB_CM_DATA_MAX);
    return len == 48 && filled(data, len, 7, 0);
}

static void connect_server(const char *provider, int fd)
{
    static struct node n;
    uint8_t done;

    node_open(&n, provider, (struct fab_config){0});
    n.admit = admit_good;
    node_listen(&n);
    tell_addr(fd, &n);
    UNTIL(&n, n.closed == 1);
    CHECK(n.refused == 2 && n.up == 1 && n.links[0].err == 0);
    hear(fd, &done, 1);
    node_close(&n);
}

static void connect_client(const char *provider, int fd)
{
    static struct node n;
    struct iovec iov = {(void *)(uintptr_t) "x", 1};
    struct fab_conn *c;
    uint8_t ticket[48], long_one[49] = {0}, done = 1;
    struct link *l;

    node_open(&n, provider, (struct fab_config){0});
    hear_addr(fd, &n);
    CHECK(fab_connect(n.s, (struct sockaddr *)&n.addr, n.addr_len, long_one, sizeof long_one, NULL, &c) == -EMSGSIZE);
    fill(ticket, sizeof ticket, 8, 0);
    l = node_connect(&n, ticket, sizeof ticket);
    CHECK(fab_send(l->c, &iov, 1) == -ENOTCONN);
    UNTIL(&n, l->closed);
    CHECK(!l->up && l->err == -ECONNREFUSED);
    l = node_connect(&n, NULL, 0);
    UNTIL(&n, l->closed);
    CHECK(!l->up && l->err == -ECONNREFUSED);
    fill(ticket, sizeof ticket, 7, 0);
    l = node_connect(&n, ticket, sizeof ticket);
    UNTIL(&n, l->up);
    CHECK(fab_send_credits(l->c) == FAB_CREDITS && !strncmp(fab_conn_peer(l->c), "127.0.0.1:", 10));
    fab_disconnect(l->c);
    fab_disconnect(l->c);
    CHECK(fab_send(l->c, &iov, 1) == -ENOTCONN);
    UNTIL(&n, l->closed);
    CHECK(l->err == 0);
    node_close(&n);
    tell(fd, &done, 1);
}

void good_ticket_is_accepted_and_bad_refused(void **state)
{
    assert_true(run_pair(__func__, *state, connect_server, connect_client));
}

/* ---- credits ---- */

static uint32_t flood_count;

static void flood_message(struct link *l, const void *msg, size_t len)
{
    uint64_t seq = l->in - 1;

    CHECK(len == 1 + seq * 37 % FAB_MSG_MAX && filled(msg, len, 3, seq));
}

static void flood_more(struct link *l)
{
    uint8_t buf[FAB_MSG_MAX];
    struct iovec iov[2];
    int r = 0;

    while (l->out < flood_count) {
        size_t len = 1 + l->out * 37 % FAB_MSG_MAX, cut = len / 3;

        fill(buf, len, 3, l->out);
        iov[0] = (struct iovec){buf, cut};
        iov[1] = (struct iovec){buf + cut, len - cut};
        r = fab_send(l->c, iov, 2);
        if (r)
            break;
        l->out++;
    }
    CHECK(r == 0 || r == -EAGAIN);
}

static void flood(struct node *n, struct link *l)
{
    /* Nobody reads yet: exactly as many as were granted can be sent. */
    n->message = flood_message;
    n->sendable = flood_more;
    if (!l->in) {
        CHECK(fab_send_credits(l->c) == fab_credits(l->c));
        flood_more(l);
        CHECK(l->out == fab_credits(l->c) && fab_send_credits(l->c) == 0);
    } else {
        flood_more(l);
    }
    UNTIL(n, l->in == flood_count && l->out == flood_count);
    CHECK(l->sendable);
}

static void flood_server(const char *provider, int fd)
{
    static const uint32_t credits[] = {1, 2, 3, 64};

    for (size_t i = 0; i < ARRAY_SIZE(credits); i++) {
        static struct node n;

        memset(&n, 0, sizeof n);
        node_open(&n, provider, (struct fab_config){.credits = credits[i]});
        node_listen(&n);
        tell_addr(fd, &n);
        n.message = flood_message;
        UNTIL(&n, n.up == 1);
        flood(&n, &n.links[0]);
        UNTIL(&n, n.closed == 1);
        CHECK(n.links[0].err == 0);
        node_close(&n);
    }
}

static void flood_client(const char *provider, int fd)
{
    static const uint32_t credits[] = {2, 1, 5, 7};

    for (size_t i = 0; i < ARRAY_SIZE(credits); i++) {
        static struct node n;
        struct fab_conn_stats st;

        memset(&n, 0, sizeof n);
        node_open(&n, provider, (struct fab_config){.credits = credits[i]});
        n.message = flood_message;
        hear_addr(fd, &n);
        node_connect(&n, NULL, 0);
        UNTIL(&n, n.up == 1);
        CHECK(fab_credits(n.links[0].c) == (i == 3 ? 7 : i == 2 ? 3 : 1));
        flood(&n, &n.links[0]);
        fab_conn_stats(n.links[0].c, &st);
        CHECK(st.msgs_in == flood_count && st.msgs_out == flood_count && !st.errors);
        fab_disconnect(n.links[0].c);
        UNTIL(&n, n.links[0].closed);
        node_close(&n);
    }
}

void messages_flow_both_ways_when_credits_run_out(void **state)
{
    flood_count = getenv("PENSTOCK_EXTENDED") ? 50000 : 2000;
    assert_true(run_pair(__func__, *state, flood_server, flood_client));
}

/* ---- requests and answers without any wait for credits ---- */

enum { ASKS = 3000 };

static void answer(struct link *l, const void *msg, size_t len)
{
    node_answer(l, msg, len); /* the rule in fabric.h: there is a credit */
}

static void answer_server(const char *provider, int fd)
{
    static struct node n;

    node_open(&n, provider, (struct fab_config){.credits = 5});
    n.message = answer;
    node_listen(&n);
    tell_addr(fd, &n);
    UNTIL(&n, n.closed == 1);
    CHECK(n.links[0].in == ASKS);
    node_close(&n);
}

static void ask_client(const char *provider, int fd)
{
    static struct node n;
    struct link *l;
    uint32_t window;

    node_open(&n, provider, (struct fab_config){.credits = 5});
    hear_addr(fd, &n);
    l = node_connect(&n, NULL, 0);
    UNTIL(&n, l->up);
    window = fab_send_credits(l->c);
    CHECK(window == 5);
    while (l->in < ASKS) {
        while (l->out < ASKS && l->out - l->in < window) {
            uint8_t buf[300];
            size_t len = 1 + rng_below(&n.rng, sizeof buf);
            struct iovec iov = {buf, len};

            memset(buf, 1, sizeof buf);
            CHECK(!fab_send(l->c, &iov, 1));
            l->out++;
        }
        CHECK(fab_progress(n.s, NSEC_PER_SEC) >= 0);
    }
    fab_disconnect(l->c);
    UNTIL(&n, l->closed);
    node_close(&n);
}

void an_answer_never_lacks_a_credit(void **state)
{
    assert_true(run_pair(__func__, *state, answer_server, ask_client));
}

/* ---- several messages in one frame ---- */

enum { TOGETHER = 20, TOGETHER_FRAMES = 3, LARGE = 4200 };

static void together_message(struct link *l, const void *msg, size_t len)
{
    CHECK(len == (l->in <= TOGETHER ? l->in - 1 : LARGE) && filled(msg, len, 5, l->in));
}

static void send_together(struct link *l)
{
    uint8_t buf[LARGE];

    for (uint64_t i = 1; i <= TOGETHER + 2; i++) {
        size_t len = i <= TOGETHER ? i - 1 : LARGE; /* the first one is empty */

        fill(buf, len, 5, i);
        node_answer(l, buf, len);
    }
}

static void take_together(struct node *n, struct link *l, uint64_t frames)
{
    struct fab_conn_stats st;

    UNTIL(n, l->in == TOGETHER + 2);
    fab_conn_stats(l->c, &st);
    CHECK(st.msgs_in == TOGETHER + 2 && st.frames_in >= frames && st.frames_in <= frames + 2);
}

/* The second client is one that knows of one message in a frame only, as a first version does. */
static void together_server(const char *provider, int fd)
{
    static struct node n;
    uint8_t done = 1;

    node_open(&n, provider, (struct fab_config){0});
    n.message = together_message;
    node_listen(&n);
    tell_addr(fd, &n);
    for (uint32_t i = 0; i < 2; i++) {
        UNTIL(&n, n.up == i + 1);
        send_together(&n.links[i]);
        take_together(&n, &n.links[i], i ? TOGETHER : TOGETHER_FRAMES);
        tell(fd, &done, 1);
        UNTIL(&n, n.closed == i + 1);
        CHECK(n.links[i].err == 0);
    }
    node_close(&n);
}

static void together_client(const char *provider, int fd)
{
    static struct node n;
    uint8_t done;

    node_open(&n, provider, (struct fab_config){0});
    n.message = together_message;
    hear_addr(fd, &n);
    for (uint32_t i = 0; i < 2; i++) {
        struct link *l;

        n.f->frame_max = i ? FAB_MSG_MAX : n.f->frame_max;
        l = node_connect(&n, NULL, 0);
        UNTIL(&n, l->up);
        l->c->takes_several = !i;
        send_together(l);
        take_together(&n, l, i ? TOGETHER : TOGETHER_FRAMES);
        hear(fd, &done, 1);
        fab_disconnect(l->c);
        UNTIL(&n, l->closed);
    }
    node_close(&n);
}

void messages_of_one_turn_share_a_frame_where_the_peer_takes_that(void **state)
{
    assert_true(run_pair(__func__, *state, together_server, together_client));
}

/* What was sent goes before the end, though nobody has driven the fabric since. */
static void last_word_server(const char *provider, int fd)
{
    static struct node n;

    node_open(&n, provider, (struct fab_config){0});
    node_listen(&n);
    tell_addr(fd, &n);
    UNTIL(&n, n.closed == 1);
    CHECK(n.links[0].in == 2 && n.links[0].err == 0);
    node_close(&n);
}

static void last_word_client(const char *provider, int fd)
{
    static struct node n;
    struct link *l;

    node_open(&n, provider, (struct fab_config){0});
    hear_addr(fd, &n);
    l = node_connect(&n, NULL, 0);
    UNTIL(&n, l->up);
    node_answer(l, "one", 3);
    node_answer(l, "two", 3);
    fab_disconnect(l->c);
    UNTIL(&n, l->closed);
    node_close(&n);
}

void a_message_goes_out_before_its_connection_is_ended(void **state)
{
    assert_true(run_pair(__func__, *state, last_word_server, last_word_client));
}

/* ---- a peer that breaks the rules ---- */

enum { FAULTS = 10 };

static void rules_server(const char *provider, int fd)
{
    static struct node n;
    uint8_t done;

    node_open(&n, provider, (struct fab_config){.credits = 4});
    node_listen(&n);
    tell_addr(fd, &n);
    UNTIL(&n, n.nlinks == FAULTS + 1 && n.closed == FAULTS);
    for (uint32_t i = 0; i < FAULTS; i++)
        CHECK(n.links[i + 1].closed && n.links[i + 1].err == -EPROTO);
    /* The first one was there before and is not touched. */
    CHECK(!n.links[0].closed && n.links[0].up);
    node_send(&n.links[0], "ok", 2);
    hear(fd, &done, 1);
    node_close(&n);
}

static void rules_client(const char *provider, int fd)
{
    static struct node n;
    uint8_t bad[FAULTS][16] = {
        {FAB_T_DATA, 1, 0, 0},
        {9, 0, 0, 0},
        {FAB_T_CREDIT, 0, 0, 0},
        {FAB_T_CREDIT, 0, 255, 0},
        {FAB_T_DATA, 0},
        {FAB_T_SEVERAL},                                     /* no message */
        {FAB_T_SEVERAL, 0, 0, 0, 1, 0, 'x'},                 /* one */
        {FAB_T_SEVERAL, 0, 0, 0, 1, 0, 'x', 2, 0, 'y'},      /* longer than the frame */
        {FAB_T_SEVERAL, 0, 0, 0, 1, 0, 'x', 1, 0, 'y', 0},   /* half a length */
        {FAB_T_SEVERAL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, /* five messages: more than it has credits */
    };
    size_t len[FAULTS] = {4, 4, 4, 4, 2, 4, 7, 10, 11, 14};
    struct link *good;
    uint8_t done = 1;

    node_open(&n, provider, (struct fab_config){0});
    hear_addr(fd, &n);
    good = node_connect(&n, NULL, 0);
    UNTIL(&n, good->up);
    for (int i = 0; i < FAULTS; i++) {
        struct link *l = node_connect(&n, NULL, 0);

        UNTIL(&n, l->up);
        CHECK(!fi_inject(l->c->ep, bad[i], len[i], 0));
        UNTIL(&n, l->closed);
        CHECK(l->err == -ECONNRESET);
    }
    UNTIL(&n, good->in == 1);
    tell(fd, &done, 1);
    fab_disconnect(good->c);
    UNTIL(&n, good->closed);
    node_close(&n);
}

void a_peer_that_breaks_the_message_rules_loses_its_connection(void **state)
{
    assert_true(run_pair(__func__, *state, rules_server, rules_client));
}

/* ---- sleeping and waking ---- */

static double cpu_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void *waker(void *arg)
{
    struct node *n = arg;

    usleep(20000);
    fab_wake(n->s);
    return NULL;
}

static void idle_second(struct node *n)
{
    double before = cpu_ms();
    uint64_t end = now_ns() + NSEC_PER_SEC;

    while (now_ns() < end)
        CHECK(fab_progress(n->s, end - now_ns()) >= 0);
    before = cpu_ms() - before;
    printf("idle second: %.2f ms of CPU\n", before);
    CHECK(before < 50);
}

static void idle_server(const char *provider, int fd)
{
    static struct node n;
    pthread_t t;
    int fds[FAB_FDS_MAX];
    struct pollfd p;

    node_open(&n, provider, (struct fab_config){0});
    node_listen(&n);
    tell_addr(fd, &n);
    UNTIL(&n, n.up == 1);
    idle_second(&n);
    /* fab_wake from another thread ends a sleep without limit. */
    CHECK(!pthread_create(&t, NULL, waker, &n));
    CHECK(fab_progress(n.s, UINT64_MAX) > 0);
    pthread_join(t, NULL);
    /* A caller with its own poll sleeps, and is woken by a message. */
    node_send(&n.links[0], "go", 2);
    CHECK(fab_fds(n.s, fds, FAB_FDS_MAX) == 1);
    while (!n.links[0].in) {
        if (fab_arm(n.s)) {
            p = (struct pollfd){fds[0], POLLIN, 0};
            CHECK(poll(&p, 1, 10000) == 1);
        }
        CHECK(fab_progress(n.s, 0) >= 0);
    }
    fab_disconnect(n.links[0].c);
    UNTIL(&n, n.closed == 1);
    node_close(&n);
}

static void idle_client(const char *provider, int fd)
{
    static struct node n;

    node_open(&n, provider, (struct fab_config){0});
    hear_addr(fd, &n);
    node_connect(&n, NULL, 0);
    UNTIL(&n, n.up == 1);
    UNTIL(&n, n.links[0].in == 1);
    usleep(50000);
    node_send(&n.links[0], "back", 4);
    UNTIL(&n, n.closed == 1);
    node_close(&n);
}

void an_idle_shard_sleeps_and_wakes(void **state)
{
    assert_true(run_pair(__func__, *state, idle_server, idle_client));
}

/* The last credit is used for a message that the provider copies, one more is wanted, and then the connection ends. */
static void waits_server(const char *provider, int fd)
{
    static struct node n;

    node_open(&n, provider, (struct fab_config){.credits = 1});
    node_listen(&n);
    tell_addr(fd, &n);
    UNTIL(&n, n.closed == 1);
    node_close(&n);
}

static void waits_client(const char *provider, int fd)
{
    static struct node n;
    struct iovec iov = {(void *)(uintptr_t) "", 0};
    struct link *l;
    int i = 0;

    node_open(&n, provider, (struct fab_config){.credits = 1});
    hear_addr(fd, &n);
    l = node_connect(&n, NULL, 0);
    UNTIL(&n, l->up);
    CHECK(fab_send(l->c, &iov, 1) == 0 && fab_send(l->c, &iov, 1) == -EAGAIN);
    fab_flush(n.s);
    fab_disconnect(l->c);
    UNTIL(&n, l->closed);
    for (; i < 100000 && !fab_arm(n.s); i++)
        CHECK(fab_progress(n.s, 0) >= 0);
    CHECK(i < 100000);
    node_close(&n);
}

void a_shard_sleeps_though_who_waited_to_send_has_ended(void **state)
{
    assert_true(run_pair(__func__, *state, waits_server, waits_client));
}
