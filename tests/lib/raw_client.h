/*
 * A client with nothing hidden: sessions, capabilities, tickets and data-plane messages one by one, so that a test can
 * send what no correct client sends. One thread; calls wait for their end, 20 s at most.
 */
#ifndef TESTS_RAW_CLIENT_H
#define TESTS_RAW_CLIENT_H

#include "control/cap.h"
#include "control/rpc.h"
#include "fabric/dp.h"
#include "fabric/fabric.h"

#include <protobuf-c/protobuf-c.h>

#define RAW_MEM (4u << 20)

struct raw {
    struct rpc_channel *ch;
    uint8_t session[16], data_key[DP_KEY_BYTES];
    struct sockaddr_storage data;
    socklen_t data_len;
    char provider[32];
    uint64_t cont; /* handle */
    uint64_t file; /* handle of what was opened last */
};

extern _Thread_local char raw_said[400]; /* what the last call that failed was told */
/* One call: -errno, or a message to be freed. */
int raw_rpc(struct raw *c, const char *path, const ProtobufCMessage *in, const ProtobufCMessageDescriptor *d,
            ProtobufCMessage **ret);
/* Opens a session with the token, and the container. 0 or -errno. */
int raw_open(struct raw *c, const char *addr, const char *token, const char *pool, const char *cont);
/* The same as this client, whose reply records it may try to meet. */
int raw_open_as(struct raw *c, const char *addr, const char *token, const char *pool, const char *cont,
                const uint8_t client[16]);
void raw_close(struct raw *c);
/* Tenants and credentials at run time; settings: "key=value", the last one NULL. token: "": one is made, and told. */
int raw_tenant_create(struct raw *c, const char *name, const char *const *settings);
int raw_tenant_delete(struct raw *c, const char *name);
int raw_cred_create(struct raw *c, const char *name, const char *const *settings, const char *token,
                    char ret_token[600]);
int raw_cred_delete(struct raw *c, const char *name);
int raw_end_session(struct raw *c);
/* Creates a file in the root and opens it for both; the capability is for all of it. */
int raw_create(struct raw *c, const char *name, uint64_t *ret_ino, struct cap *ret_cap);
/* Opens it until the end of the session; rights: CAP_READ, CAP_WRITE. */
int raw_open_file(struct raw *c, uint64_t ino, uint32_t rights, struct cap *ret_cap);
int raw_close_file(struct raw *c, uint64_t handle);
int raw_chmod(struct raw *c, uint64_t ino, uint32_t mode);
int raw_unlink(struct raw *c, const char *name); /* in the root */
int raw_grant(struct raw *c, uint64_t ino, uint32_t rights, uint64_t offset, uint64_t length, uint32_t lifetime_ms,
              struct cap *ret_cap, uint64_t *ret_key_id);
/* With a request id; attempt as in RequestId. */
int raw_mkdir(struct raw *c, const char *name, uint32_t slot, uint64_t seq, uint64_t attempt);
int raw_rmdir(struct raw *c, const char *name);
int raw_revoke_key(struct raw *c, uint64_t key_id);
int raw_revoke_session(struct raw *c); /* all of it: how many keys */
int raw_revoke_cont(struct raw *c);    /* of everybody in its container */
int raw_ticket(struct raw *c, uint32_t shard, uint8_t ret[48], size_t *ret_len);

/*
 * A way for a third party (docs/protocol.md, section 11): what an agent gets from its server, or a host from its agent.
 */
struct raw_way {
    uint8_t ticket[48], key[DP_KEY_BYTES];
    size_t len;
    uint64_t number;
    struct sockaddr_storage addr;
    socklen_t addr_len;
};
int raw_third_ticket(struct raw *c, uint32_t shard, uint64_t owner, struct raw_way *ret);
int raw_third_party(struct raw *c, uint32_t shard, struct raw_way *ret);

/* A data connection of such a client. */
struct raw_conn {
    struct fab *fab;
    struct fab_shard *shard;
    struct fab_conn *conn;
    struct pst_mac *mac;
    uint64_t msgno;
    bool up, closed;
    int closed_err;
    bool got; /* an answer: */
    struct dp_reply reply;
    uint8_t payload[DP_INLINE_MAX];
    uint8_t *mem; /* RAW_MEM bytes, which the server may read and write */
    struct fab_mr *mr;
    uint8_t sent[FAB_MSG_MAX]; /* the last message */
    size_t sent_len;
};

/* 0: up; -ECONNREFUSED and the like: not. key: of the MAC, NULL: the right one. */
int raw_connect(struct raw *c, const void *ticket, size_t len, const uint8_t *session_key, struct raw_conn *k);
/* A ticket and a connection. */
int raw_connect_shard(struct raw *c, uint32_t shard, struct raw_conn *k);
int raw_connect_new(struct raw *c, struct raw_conn *k); /* shard 0 */
/* By a way. */
int raw_connect_third(struct raw *c, const struct raw_way *w, struct raw_conn *k);
void raw_disconnect(struct raw_conn *k);
/* Sends bytes as they are. */
int raw_send(struct raw_conn *k, const void *msg, size_t len);
/* Encodes and sends; msgno 0: the next one. Does not wait. */
int raw_request(struct raw_conn *k, const struct dp_request *r);
/* Waits for an answer: its status, or -ENOTCONN when the connection ended instead. */
int raw_wait(struct raw_conn *k);
int raw_call(struct raw_conn *k, const struct dp_request *r);
int raw_bind(struct raw_conn *k, uint32_t number, const struct cap *cap);
/* A request to move len bytes between the file and mem at `at`. */
struct dp_request raw_io(struct raw_conn *k, uint8_t opcode, uint32_t cap, uint64_t ino, uint64_t offset, uint32_t len,
                         uint32_t at);

#endif
