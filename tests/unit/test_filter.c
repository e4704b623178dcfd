/* Filters on a store that only counts: what is passed on, what `delay` and `error` change, and when. */
#include "filter/filter.h"

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/eventfd.h>

#include <cmocka.h>

/* The store at the bottom: completes each operation at once, with the length as result. */
struct sink {
    struct pst_store st;
    int lookups, opens, releases, submits, closes, fail_submit;
};
struct sink_queue {
    struct pst_queue q;
    struct list done;
    int fd;
};

static struct sink *sink_of(struct pst_store *st)
{
    return container_of(st, struct sink, st);
}

static void sink_close(struct pst_store *st)
{
    sink_of(st)->closes++;
}

static int sink_cont_open(struct pst_store *st, const struct pst_ctx *ctx, const char *pool, const char *label,
                          struct pst_cont **ret)
{
    struct pst_cont *c = calloc(1, sizeof *c);
    (void)ctx;
    (void)pool;
    strcpy(c->info.label, label);
    c->store = st;
    *ret = c;
    return 0;
}

static void sink_cont_close(struct pst_cont *c)
{
    free(c);
}

static int sink_lookup(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t parent, const char *name,
                       struct pst_attr *ret)
{
    (void)ctx;
    (void)name;
    sink_of(c->store)->lookups++;
    ret->ino = parent + 1;
    return 0;
}

static int sink_open(struct pst_cont *c, const struct pst_ctx *ctx, uint64_t ino, int accmode, bool trunc,
                     struct pst_attr *ret)
{
    (void)ctx;
    (void)accmode;
    (void)trunc;
    sink_of(c->store)->opens++;
    ret->ino = ino;
    return 0;
}

static void sink_release(struct pst_cont *c, uint64_t ino)
{
    (void)ino;
    sink_of(c->store)->releases++;
}

static int sink_queue_open(struct pst_store *st, uint32_t depth, struct pst_queue **ret)
{
    struct sink_queue *q = calloc(1, sizeof *q);
    (void)depth;
    q->q.store = st;
    q->fd = eventfd(0, EFD_NONBLOCK);
    list_init(&q->done);
    *ret = &q->q;
    return 0;
}

static void sink_queue_close(struct pst_queue *q)
{
    struct sink_queue *s = container_of(q, struct sink_queue, q);
    close(s->fd);
    free(s);
}

static int sink_submit(struct pst_queue *q, struct pst_op *op)
{
    struct sink_queue *s = container_of(q, struct sink_queue, q);
    struct sink *k = sink_of(q->store);
    if (k->fail_submit)
        return k->fail_submit;
    assert_ptr_equal(op->cont->store, q->store); /* the container is the one of this level */
    k->submits++;
    op->result = (int64_t)op->length;
    list_push_back(&s->done, &op->link);
    eventfd_write(s->fd, 1);
    return 0;
}

static int sink_reap(struct pst_queue *q, struct pst_op **ret_ops, int max, uint64_t timeout_ns)
{
    struct sink_queue *s = container_of(q, struct sink_queue, q);
    eventfd_t v;
    int n = 0;
    (void)timeout_ns;
    while (n < max && !list_empty(&s->done))
        ret_ops[n++] = list_entry(list_pop_front(&s->done), struct pst_op, link);
    if (list_empty(&s->done))
        eventfd_read(s->fd, &v);
    return n;
}

static int sink_fd(struct pst_queue *q)
{
    return container_of(q, struct sink_queue, q)->fd;
}

static const struct pst_store_ops sink_ops = {
    .name = "sink",
    .close = sink_close,
    .cont_open = sink_cont_open,
    .cont_close = sink_cont_close,
    .lookup = sink_lookup,
    .open = sink_open,
    .release = sink_release,
    .queue_open = sink_queue_open,
    .queue_close = sink_queue_close,
    .queue_submit = sink_submit,
    .queue_reap = sink_reap,
    .queue_fd = sink_fd,
};

static const struct pst_ctx ctx;

struct rig {
    struct sink sink;
    struct pst_store *top;
    struct pst_cont *c;
    struct pst_queue *q;
};

static void rig_up(struct rig *r, const char *const *specs)
{
    char err[256] = "";
    *r = (struct rig){.sink.st.ops = &sink_ops};
    r->top = &r->sink.st;
    for (; *specs; specs++)
        if (filter_push(*specs, r->top, &r->top, err, sizeof err) < 0)
            fail_msg("%s", err);
    assert_int_equal(pst_cont_open(r->top, &ctx, "p", "c", &r->c), 0);
    assert_string_equal(r->c->info.label, "c");
    assert_int_equal(pst_queue_open(r->top, 4, &r->q), 0);
}

static void rig_down(struct rig *r)
{
    pst_queue_close(r->q);
    pst_cont_close(r->c);
    pst_store_close(r->top);
    assert_int_equal(r->sink.closes, 1);
}

#define RIG(name, ...)                                                                                                 \
    struct rig name;                                                                                                   \
    rig_up(&name, (const char *const[]){__VA_ARGS__, NULL})

static struct pst_op write_op(struct rig *r, void *user)
{
    static char byte;
    static const struct iovec iov = {&byte, 1};
    return (struct pst_op){
        .kind = PST_OP_WRITE, .cont = r->c, .ino = 2, .length = 1, .iov = &iov, .iovcnt = 1, .user = user};
}

static void stacked_filters_pass_everything_on(void **state)
{
    RIG(r, "delay:ms=1,op=read", "error:errno=EIO,op=read", "delay:ms=5,op=fsync");
    int mark;
    struct pst_op op = write_op(&r, &mark);
    struct pst_attr a;
    (void)state;

    assert_int_equal(pst_store_lookup(r.c, &ctx, 1, "x", &a), 0);
    assert_int_equal(a.ino, 2);
    assert_int_equal(r.sink.lookups, 1);
    assert_int_equal(pst_queue_run(r.q, &op), 1);
    assert_ptr_equal(op.cont, r.c); /* as submitted */
    assert_ptr_equal(op.user, &mark);
    assert_int_equal(pst_store_backup(r.top, "/nowhere"), -EOPNOTSUPP); /* what the store below does not have */
    rig_down(&r);
}

static bool sink_wants_shared(const struct pst_store *st)
{
    (void)st;
    return true;
}

/* Memory that is handed over serves the store below as long as the bytes in it are what goes there. */
static void shared_memory_is_wanted_through_filters_that_leave_the_bytes(void **state)
{
    struct pst_store_ops ops = sink_ops;
    RIG(r, "quota:bytes=1G", "delay:ms=1,op=read", "error:errno=EIO,op=read");
    char err[256];
    (void)state;

    assert_false(pst_store_wants_shared(r.top));
    ops.wants_shared = sink_wants_shared;
    r.sink.st.ops = &ops;
    assert_true(pst_store_wants_shared(r.top));
    assert_int_equal(filter_push("csum", r.top, &r.top, err, sizeof err), 0);
    assert_false(pst_store_wants_shared(r.top));
    rig_down(&r);
}

static void a_queue_takes_its_depth_and_no_more(void **state)
{
    RIG(r, "delay:ms=20,op=write");
    struct pst_op op[5], *done[8];
    int n = 0;
    (void)state;

    for (int i = 0; i < 5; i++) {
        op[i] = write_op(&r, NULL);
        assert_int_equal(pst_queue_submit(r.q, &op[i]), i < 4 ? 0 : -EAGAIN);
    }
    assert_ptr_equal(op[4].cont, r.c);
    while (n < 4)
        n += pst_queue_reap(r.q, done, 8, UINT64_MAX);
    assert_int_equal(n, 4);
    assert_int_equal(pst_queue_reap(r.q, done, 8, UINT64_MAX), 0); /* none in flight: does not wait */
    rig_down(&r);
}

static void delay_before_holds_back_the_effect(void **state)
{
    RIG(r, "delay:ms=30,op=write");
    struct pst_op op = write_op(&r, NULL), *done;
    struct pollfd pfd = {.fd = pst_queue_fd(r.q), .events = POLLIN};
    uint64_t start = now_ns();
    (void)state;

    assert_int_equal(pst_queue_submit(r.q, &op), 0);
    assert_int_equal(pst_queue_reap(r.q, &done, 1, 0), 0);
    assert_int_equal(r.sink.submits, 0);
    assert_int_equal(poll(&pfd, 1, 5000), 1); /* the descriptor says when reap has something to do */
    assert_int_equal(pst_queue_reap(r.q, &done, 1, UINT64_MAX), 1);
    assert_true(now_ns() - start >= 30 * NSEC_PER_MSEC);
    assert_int_equal(op.result, 1);
    rig_down(&r);
}

static void delay_after_withholds_the_reply_only(void **state)
{
    RIG(r, "delay:ms=30,op=write,when=after");
    struct pst_op op = write_op(&r, NULL), *done;
    uint64_t start = now_ns();
    (void)state;

    assert_int_equal(pst_queue_submit(r.q, &op), 0);
    assert_int_equal(r.sink.submits, 1);
    assert_int_equal(pst_queue_reap(r.q, &done, 1, 0), 0);
    assert_int_equal(pst_queue_reap(r.q, &done, 1, NSEC_PER_MSEC), 0); /* a time-out shorter than the delay */
    assert_int_equal(pst_queue_reap(r.q, &done, 1, UINT64_MAX), 1);
    assert_true(now_ns() - start >= 30 * NSEC_PER_MSEC);
    rig_down(&r);
}

static void error_hits_every_nth_operation(void **state)
{
    RIG(r, "error:errno=ENOSPC,op=write+fsync,every=3,skip=1,count=2");
    (void)state;

    for (int i = 1; i <= 12; i++) {
        struct pst_op op = write_op(&r, NULL);
        assert_int_equal(pst_queue_run(r.q, &op), i == 4 || i == 7 ? -ENOSPC : 1); /* the 10th is past the count */
    }
    assert_int_equal(r.sink.submits, 10);
    rig_down(&r);
}

static void error_after_lets_the_effect_happen(void **state)
{
    RIG(r, "error:errno=EIO,op=write,when=after", "error:errno=ENOENT,op=lookup,when=after");
    struct pst_op op = write_op(&r, NULL);
    struct pst_attr a;
    (void)state;

    assert_int_equal(pst_queue_run(r.q, &op), -EIO);
    assert_int_equal(r.sink.submits, 1);
    assert_int_equal(pst_store_lookup(r.c, &ctx, 1, "x", &a), -ENOENT);
    assert_int_equal(r.sink.lookups, 1);
    rig_down(&r);
}

static void a_failed_open_leaves_nothing_open(void **state)
{
    RIG(r, "error:errno=EMFILE,op=open,when=after,every=2");
    struct pst_attr a;
    (void)state;

    assert_int_equal(pst_store_open(r.c, &ctx, 2, 0, false, &a), 0);
    assert_int_equal(pst_store_open(r.c, &ctx, 2, 0, false, &a), -EMFILE);
    pst_store_release(r.c, 2);
    assert_int_equal(r.sink.opens, r.sink.releases);
    rig_down(&r);
}

static void a_refusal_below_is_passed_up(void **state)
{
    RIG(r, "delay:ms=1,op=read", "error:errno=EIO,op=read");
    struct pst_op op = write_op(&r, &r);
    (void)state;

    r.sink.fail_submit = -EAGAIN;
    for (int i = 0; i < 10; i++) /* no frame is lost */
        assert_int_equal(pst_queue_submit(r.q, &op), -EAGAIN);
    assert_ptr_equal(op.user, &r);
    r.sink.fail_submit = 0;
    assert_int_equal(pst_queue_run(r.q, &op), 1);
    rig_down(&r);
}

static void a_late_refusal_below_completes_the_operation(void **state)
{
    RIG(r, "delay:ms=1,op=write");
    struct pst_op op = write_op(&r, NULL);
    (void)state;

    r.sink.fail_submit = -EIO;
    assert_int_equal(pst_queue_run(r.q, &op), -EIO);
    assert_ptr_equal(op.cont, r.c);
    rig_down(&r);
}

static void a_cancelled_operation_is_not_held_back(void **state)
{
    RIG(r, "delay:ms=600000,op=write");
    RIG(late, "delay:ms=600000,op=write,when=after");
    struct pst_op op = write_op(&r, NULL), after = write_op(&late, NULL), *done;
    (void)state;

    assert_int_equal(pst_queue_submit(r.q, &op), 0);
    pst_queue_cancel(r.q, &op);
    assert_int_equal(pst_queue_reap(r.q, &done, 1, UINT64_MAX), 1);
    assert_int_equal(op.result, -ECANCELED);
    assert_int_equal(r.sink.submits, 0);
    assert_int_equal(pst_queue_submit(late.q, &after), 0);
    assert_int_equal(pst_queue_reap(late.q, &done, 1, 0), 0);
    pst_queue_cancel(late.q, &after);
    assert_int_equal(pst_queue_reap(late.q, &done, 1, UINT64_MAX), 1);
    assert_int_equal(after.result, 1); /* what it would have been */
    rig_down(&r);
    rig_down(&late);
}

static void a_bad_specification_says_what_is_wrong(void **state)
{
    static const struct {
        const char *spec, *says;
    } cases[] = {
        {"", "known filters: compress crypt csum delay error"},
        {"dealy:ms=1", "no filter \"dealy\""},
        {"delay", "option ms= is missing"},
        {"delay:ms=0", "must be a number from 1 to 600000"},
        {"delay:ms=1x", "ms=1x"},
        {"delay:ms=-1", "ms=-1"},
        {"delay:ms=1,op=", "op= names no operation"},
        {"delay:ms=1,op=read+wirte", "unknown operation"},
        {"delay:ms=1,when=soon", "must be before or after"},
        {"delay:ms=1,errno=EIO", "unknown option \"errno\""},
        {"error:errno=EFOO", "not the name of an error"},
        {"error:op=read", "option errno= is missing"},
        {"error:errno=EIO,every=0", "every=0"},
    };
    struct sink k = {.st.ops = &sink_ops};
    struct pst_store *top = NULL;
    (void)state;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char err[256] = "";
        assert_int_equal(filter_push(cases[i].spec, &k.st, &top, err, sizeof err), -EINVAL);
        if (!strstr(err, cases[i].says))
            fail_msg("\"%s\" gives \"%s\", without \"%s\"", cases[i].spec, err, cases[i].says);
    }
    assert_null(top);
    assert_int_equal(k.closes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stacked_filters_pass_everything_on),
        cmocka_unit_test(shared_memory_is_wanted_through_filters_that_leave_the_bytes),
        cmocka_unit_test(a_queue_takes_its_depth_and_no_more),
        cmocka_unit_test(delay_before_holds_back_the_effect),
        cmocka_unit_test(delay_after_withholds_the_reply_only),
        cmocka_unit_test(error_hits_every_nth_operation),
        cmocka_unit_test(error_after_lets_the_effect_happen),
        cmocka_unit_test(a_failed_open_leaves_nothing_open),
        cmocka_unit_test(a_refusal_below_is_passed_up),
        cmocka_unit_test(a_late_refusal_below_completes_the_operation),
        cmocka_unit_test(a_cancelled_operation_is_not_held_back),
        cmocka_unit_test(a_bad_specification_says_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
