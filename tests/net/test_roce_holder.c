/*
 * Several processes on one address, by a holder: two servers and two clients, the holder killed in between, a stranger.
 * argv[1]: the uroce command.
 */
#include "base/util.h"
#include "lib/netns.h"
#include "roce/device_holder.h"
#include "uroce/cm.h"
#include "uroce_node.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "lib/own_use.h"

#define LEN   (1u << 20)
#define PEERS 2

#define STRANGER 65534

static struct netns_pair ns;

/* What two ends tell each other by a pipe of the test. */
struct ticket {
    uint32_t qpn, rkey;
    uint64_t addr;
};

static void must(bool ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "child: %s: %s\n", what, strerror(errno));
    _exit(1);
}

/* A server in namespace 0: tells its queue pair, serves what comes until it is told to end. */
static void serve(int sock, int i, uid_t uid)
{
    struct uroce_config c = {.addresses = "10.77.0.1"};
    struct ticket mine, peer;
    struct node n;
    char end;
    netns_enter(&ns, 0);
    if (uid)
        must(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0, "user");
    node_open(&n, &c, LEN);
    struct uroce_qp *qp = node_qp(&n, UROCE_QPT_RC, 16);
    mine = (struct ticket){uroce_qp_num(qp), uroce_mr_rkey(n.mr), (uintptr_t)n.buf};
    must(send(sock, &mine, sizeof mine, 0) == sizeof mine, "send");
    must(recv(sock, &peer, sizeof peer, MSG_WAITALL) == sizeof peer, "recv");
    node_connect_to(qp, peer.qpn, "10.77.0.2", UROCE_MTU_1024);
    must(send(sock, "r", 1, 0) == 1, "send");
    must(recv(sock, &end, 1, 0) == 1, "recv");
    for (uint32_t k = 0; k < LEN; k++)
        must(n.buf[k] == (uint8_t)(i + 1), "wrong byte");
    struct uroce_qp_transport t;
    must(uroce_qp_transport(qp, &t) == 0, "transport");
    end = t.selective_repeat ? 's' : '-';
    must(send(sock, &end, 1, 0) == 1, "send");
    _exit(0);
}

struct peer {
    pid_t pid;
    int sock;
    struct ticket ticket;
    struct node node;
    struct uroce_qp *qp;
};

static void start_users_server(struct peer *p, int i, uid_t uid)
{
    int s[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s), 0);
    p->pid = fork();
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(s[0]);
        serve(s[1], i, uid);
    }
    close(s[1]);
    p->sock = s[0];
    assert_int_equal(recv(p->sock, &p->ticket, sizeof p->ticket, MSG_WAITALL), sizeof p->ticket);
}

static void start_server(struct peer *p, int i)
{
    start_users_server(p, i, 0);
}

/* Our end is a device of its own in namespace 1: several in one process share its address as processes do. */
static void connect_client(struct peer *p)
{
    struct uroce_config c = {.addresses = "10.77.0.2"};
    char ready;
    netns_enter(&ns, 1);
    node_open(&p->node, &c, LEN);
    netns_enter(&ns, 0);
    p->qp = node_qp(&p->node, UROCE_QPT_RC, 16);
    struct ticket mine = {.qpn = uroce_qp_num(p->qp)};
    assert_int_equal(send(p->sock, &mine, sizeof mine, 0), sizeof mine);
    node_connect_to(p->qp, p->ticket.qpn, "10.77.0.1", UROCE_MTU_1024);
    assert_int_equal(recv(p->sock, &ready, 1, 0), 1);
}

static void write_all(struct peer *p, int value)
{
    struct uroce_wc wc;
    memset(p->node.buf, value, LEN);
    node_write_key(&p->node, p->qp, LEN, p->ticket.addr, p->ticket.rkey);
    node_wait(&p->node, NULL, 1, &wc);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
}

/* The processes of the holder in namespace `i`, by who answers there. */
static pid_t holder_pid(int i)
{
    struct sockaddr_un name;
    socklen_t len = holder_name(geteuid(), false, &name);
    netns_enter(&ns, i);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct timeval t = {.tv_sec = 10};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    int r = connect(s, (struct sockaddr *)&name, len);
    netns_enter(&ns, 0);
    if (r) {
        close(s);
        return -1;
    }
    /* The listener was made by the first keeper: ask who serves by a message, whose sender the kernel names. */
    int on = 1;
    setsockopt(s, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
    struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_JOIN, .slot = 0};
    assert_int_equal(holder_send(s, &m, -1), 0);
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(struct ucred))];
    } c;
    struct iovec iov = {&m, sizeof m};
    struct msghdr h = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c.space};
    assert_int_equal(recvmsg(s, &h, 0), sizeof m);
    struct ucred who;
    memcpy(&who, CMSG_DATA(CMSG_FIRSTHDR(&h)), sizeof who);
    close(s);
    return who.pid;
}

static pid_t parent_of(pid_t pid)
{
    char path[64], line[512] = "";
    int ppid = -1;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f))
        sscanf(strrchr(line, ')') + 2, "%*c %d", &ppid);
    if (f)
        fclose(f);
    return ppid;
}

static void end_server(struct peer *p, char *ret_how)
{
    int status;
    assert_int_equal(send(p->sock, "e", 1, 0), 1);
    assert_int_equal(recv(p->sock, ret_how, 1, 0), 1);
    assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
    assert_int_equal(status, 0);
    close(p->sock);
}

static void processes_share_an_address_and_outlive_the_holder(void **state)
{
    (void)state;
    struct peer p[PEERS];
    for (int i = 0; i < PEERS; i++)
        start_server(&p[i], i);
    for (int i = 0; i < PEERS; i++)
        connect_client(&p[i]);
    assert_int_not_equal(p[0].ticket.qpn >> 16, p[1].ticket.qpn >> 16);
    assert_int_not_equal(p[0].ticket.qpn >> 16, 0);
    for (int i = 0; i < PEERS; i++)
        write_all(&p[i], 0x40 + i);
    for (int round = 0; round < 2; round++) { /* the worker, then the keeper */
        pid_t worker = holder_pid(0), keeper = parent_of(worker);
        assert_true(worker > 1 && keeper > 1);
        assert_int_equal(kill(round ? keeper : worker, SIGKILL), 0);
        for (int i = 0; i < PEERS; i++)
            write_all(&p[i], 0x50 + i);
        /* A worker's death: the keeper's next child. The keeper's: the worker keeps, and has a child of its own. */
        uint64_t end = now_ns() + 10 * NSEC_PER_SEC;
        pid_t now = holder_pid(0);
        while ((now <= 1 || now == worker || parent_of(now) != (round ? worker : keeper)) && now_ns() < end) {
            poll(NULL, 0, 10);
            now = holder_pid(0);
        }
        assert_true(now > 1 && now != worker);
        assert_int_equal(parent_of(now), round ? worker : keeper);
    }
    /* The new holder serves newcomers, and gives them a slot that nobody has. */
    struct peer third;
    start_server(&third, PEERS);
    connect_client(&third);
    for (int i = 0; i < PEERS; i++)
        assert_int_not_equal(third.ticket.qpn >> 16, p[i].ticket.qpn >> 16);
    write_all(&third, PEERS + 1);
    for (int i = 0; i < PEERS; i++)
        write_all(&p[i], i + 1);
    char how;
    for (int i = 0; i < PEERS; i++)
        end_server(&p[i], &how);
    end_server(&third, &how);
    assert_int_equal(how, 's'); /* the hello went by QPN 1 and both holders */
    for (int i = 0; i <= PEERS; i++) {
        struct peer *q = i == PEERS ? &third : &p[i];
        assert_int_equal(uroce_qp_destroy(q->qp), 0);
        node_close(&q->node);
    }
}

struct binding {
    struct uroce_cm_id *id;
    struct uroce_cm_addr at;
    int result;
    atomic_bool begun, done;
};

static void *bind_it(void *arg)
{
    struct binding *b = arg;
    atomic_store(&b->begun, true);
    b->result = uroce_cm_bind(b->id, &b->at, 0);
    atomic_store(&b->done, true);
    return NULL;
}

/*
 * A port is asked for while the holder is stopped: whoever asks waits, five seconds, and no other thread of the device.
 */
static void a_holder_that_does_not_answer_holds_up_no_data(void **state)
{
    (void)state;
    struct uroce_cm_channel *ch;
    struct binding b = {0};
    struct peer p;
    struct uroce_wc wc;
    pthread_t t;
    char how;
    start_server(&p, 0);
    connect_client(&p);
    write_all(&p, 1);
    assert_int_equal(uroce_query_gid(p.node.dev, 0, &b.at.gid), 0);
    assert_int_equal(uroce_cm_channel_create(&ch), 0);
    assert_int_equal(uroce_cm_id_create(p.node.dev, ch, UROCE_CM_TCP, NULL, &b.id), 0);
    pid_t worker = holder_pid(1);
    assert_true(worker > 1 && kill(worker, SIGSTOP) == 0);
    assert_int_equal(pthread_create(&t, NULL, bind_it, &b), 0);
    while (!atomic_load(&b.begun))
        poll(NULL, 0, 1);
    poll(NULL, 0, 300); /* it waits for the answer by now */
    node_write_key(&p.node, p.qp, 4096, p.ticket.addr, p.ticket.rkey);
    node_wait(&p.node, NULL, 1, &wc);
    assert_int_equal(wc.status, UROCE_WC_SUCCESS);
    assert_false(atomic_load(&b.done));
    pthread_join(t, NULL);
    assert_int_equal(b.result, -ENOTCONN);
    assert_int_equal(kill(worker, SIGCONT), 0);
    assert_int_equal(uroce_cm_bind(b.id, &b.at, 0), 0);
    assert_int_equal(uroce_cm_id_destroy(b.id), 0);
    assert_int_equal(uroce_cm_channel_destroy(ch), 0);
    end_server(&p, &how);
    assert_int_equal(uroce_qp_destroy(p.qp), 0);
    node_close(&p.node);
}

static pid_t start_system_holder(const char *program)
{
    struct sockaddr_un name;
    socklen_t len = holder_name(0, true, &name);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl(program, program, "holder", "--system", (char *)NULL);
        _exit(1);
    }
    setpgid(pid, pid);
    int r = -1;
    for (uint64_t end = now_ns() + 10 * NSEC_PER_SEC; r && now_ns() < end; poll(NULL, 0, 2)) {
        int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        r = connect(s, (struct sockaddr *)&name, len);
        close(s);
    }
    assert_int_equal(r, 0);
    return pid;
}

/* The slot of another user's living process is not to be had, whoever asks for it. */
static void a_strangers_slot_is_not_given(uint32_t slot)
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct sockaddr_un name;
        socklen_t len = holder_name(0, true, &name);
        struct holder_msg m = {.magic = HOLDER_MAGIC, .type = HOLDER_JOIN, .slot = slot};
        int fd, s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        must(setresgid(STRANGER, STRANGER, STRANGER) == 0 && setresuid(STRANGER, STRANGER, STRANGER) == 0, "user");
        must(connect(s, (struct sockaddr *)&name, len) == 0, "connect");
        must(holder_send(s, &m, -1) == 0 && holder_recv(s, 0, &m, &fd) == 0, "ask");
        _exit(m.type == HOLDER_JOINED && m.status == -EBUSY && fd < 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static const char *uroce_program;

/* Processes of two users have one address by the system's holder, each with its own queue pairs. */
static void the_systems_holder_serves_the_processes_of_all_users(void **state)
{
    (void)state;
    if (geteuid())
        skip();
    static const uid_t uid[PEERS] = {STRANGER, STRANGER - 1};
    struct peer p[PEERS];
    netns_enter(&ns, 0);
    pid_t holder = start_system_holder(uroce_program);
    for (int i = 0; i < PEERS; i++)
        start_users_server(&p[i], i, uid[i]);
    for (int i = 0; i < PEERS; i++)
        connect_client(&p[i]);
    assert_int_not_equal(p[0].ticket.qpn >> 16, p[1].ticket.qpn >> 16);
    a_strangers_slot_is_not_given(p[1].ticket.qpn >> 16);
    for (int i = 0; i < PEERS; i++)
        write_all(&p[i], i + 1);
    for (int i = 0; i < PEERS; i++) {
        char how;
        end_server(&p[i], &how);
        assert_int_equal(how, 's');
        assert_int_equal(uroce_qp_destroy(p[i].qp), 0);
        node_close(&p[i].node);
    }
    assert_int_equal(kill(-holder, SIGKILL), 0); /* the keeper and its worker */
    assert_int_equal(waitpid(holder, NULL, 0), holder);
}

/* A stranger's uid is told so, by name, and gets nothing. */
static void another_users_process_is_refused_with_a_reason(void **state)
{
    (void)state;
    struct uroce_config c = {.addresses = "10.77.0.1"};
    struct node n;
    netns_enter(&ns, 0);
    node_open(&n, &c, 4096);
    int pipe_fd[2], status;
    assert_int_equal(pipe(pipe_fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char err[256] = "";
        struct uroce_device *dev;
        if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
            _exit(2);
        int r = uroce_open(&c, &dev, err, sizeof err);
        if (write(pipe_fd[1], err, sizeof err) < 0)
            _exit(3);
        _exit(r < 0 ? 0 : 1);
    }
    char err[256];
    assert_int_equal(read(pipe_fd[0], err, sizeof err), sizeof err);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    if (!strstr(err, "10.77.0.1") || !strstr(err, "UROCE_ADDRESS"))
        fail_msg("the message: %s", err);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    node_close(&n);
}

/* Whatever is sent to the holder: it goes on. */
static void garbage_does_not_harm_the_holder(void **state)
{
    (void)state;
    struct uroce_config c = {.addresses = "10.77.0.1"};
    struct node n;
    node_open(&n, &c, 4096);
    struct sockaddr_un name;
    socklen_t len = holder_name(geteuid(), false, &name);
    for (int i = 0; i < 200; i++) {
        struct holder_msg m = {
            .magic = HOLDER_MAGIC, .type = (uint32_t)i % 8, .slot = (uint32_t)i * 7919u, .len = 9999};
        int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        assert_int_equal(connect(s, (struct sockaddr *)&name, len), 0);
        if (i % 3 == 0)
            m.magic ^= 1;
        if (i % 3 == 1)
            m.len = 0;
        send(s, &m, i % 2 ? sizeof m : (size_t)i, MSG_NOSIGNAL);
        close(s);
    }
    struct node other;
    node_open(&other, &c, 4096);
    node_close(&other);
    node_close(&n);
}

/* A holder that answers a request twice: first one that was given up, with a socket, then this one. */
static void answer_late(int listener)
{
    int s = accept(listener, NULL, NULL), fd;
    struct holder_msg m;
    must(s >= 0, "accept");
    while (holder_recv(s, 0, &m, &fd) == 0 && m.type != HOLDER_LEAVE) {
        struct holder_msg late = m;
        m.type = m.type == HOLDER_JOIN ? HOLDER_JOINED : m.type;
        m.slot = 5;
        m.status = 0;
        late.type = m.type;
        late.seq = m.seq - 1;
        late.status = m.type == HOLDER_JOINED ? 0 : -EADDRINUSE;
        late.slot = 6;
        must(holder_send(s, &late, s) == 0 && holder_send(s, &m, -1) == 0, "answer");
    }
    _exit(0);
}

static void wait_alone(void *ctx, int sock, int ms)
{
    (void)ctx;
    poll(&(struct pollfd){.fd = sock, .events = POLLIN}, 1, ms);
}

static void an_answer_to_an_earlier_request_is_not_taken_for_this_ones(void **state)
{
    (void)state;
    struct sockaddr_un name;
    assert_int_equal(unshare(CLONE_NEWNET), 0); /* nobody holds anything there */
    socklen_t len = holder_name(geteuid(), false, &name);
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s, (struct sockaddr *)&name, len), 0);
    assert_int_equal(listen(s, 1), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        answer_late(s);
    }
    close(s);
    struct holder_client c;
    struct holder_bind b = {.service_id = 7, .n = 1};
    char err[256] = "";
    assert_int_equal(holder_client_join(&c, err, sizeof err), 0);
    assert_int_equal(c.slot, 5);
    unsigned before = descriptors();
    for (int i = 0; i < 10; i++) {
        assert_int_equal(holder_client_bind(&c, &b, wait_alone, NULL), 0);
        holder_client_unbind(&c, &b, wait_alone, NULL);
    }
    assert_int_equal(descriptors(), before);
    holder_client_leave(&c);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    netns_enter(&ns, 0);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s UROCE-COMMAND\n", argv[0]);
        return 2;
    }
    uroce_program = argv[1];
    setenv("UROCE_HOLDER", argv[1], 1);
    netns_pair_make(&ns, 1500);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_systems_holder_serves_the_processes_of_all_users), /* first: an address has one holder */
        cmocka_unit_test(processes_share_an_address_and_outlive_the_holder),
        cmocka_unit_test(a_holder_that_does_not_answer_holds_up_no_data),
        cmocka_unit_test(another_users_process_is_refused_with_a_reason),
        cmocka_unit_test(garbage_does_not_harm_the_holder),
        cmocka_unit_test(an_answer_to_an_earlier_request_is_not_taken_for_this_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
