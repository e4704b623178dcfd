/* Certificates for control connections, and the token files of loopback ones. */
#ifndef CONTROL_TLS_H
#define CONTROL_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tls_init {
    const char *const *server_names; /* DNS names and IP addresses for the server's certificate */
    size_t nserver_names;            /* 0: localhost, 127.0.0.1, ::1 and this host's name */
    const char *client_name;         /* credential that the client's certificate names; NULL: "admin" */
    uint32_t days;                   /* 0: 825 for server and client; the CA has 10 years */
};

/*
 * Makes a small CA (ca.pem, ca.key) and certificates (server.pem, server.key, CLIENT.pem, CLIENT.key) in dir: EC P-256,
 * keys with mode 0600. An existing CA and server certificate in dir are used: so further clients
 * are made. An existing certificate of that client is -EEXIST. A line for people in err.
 */
int tls_init(const char *dir, const struct tls_init *o, char *err, size_t err_size);

/* ---- token files: who can read the server's file is let in, over loopback and Unix sockets ---- */

#define TOKEN_BYTES 65 /* 64 hex digits and NUL */

/*
 * $PENSTOCK_RUN_DIR, or /run/penstock for root, $XDG_RUNTIME_DIR/penstock, /tmp/penstock-UID. Made (0700) if absent;
 * -EPERM unless it is a folder of the caller's own that others cannot write to (the one in /tmp: nor look into).
 */
int token_run_dir(char *ret_dir, size_t size);
/* Makes a random token and its file (0600, replaced whole) for the server at addr; port: the one that was taken. */
int token_create(const char *addr, int port, char ret_token[TOKEN_BYTES]);
void token_remove(const char *addr, int port);
/*
 * Reads the token for a local address. -ENOENT: no such server; -EPERM: the file is not the caller's or root's, or
 * others may read it. Looks into root's /run/penstock as well.
 */
int token_find(const char *addr, char ret_token[TOKEN_BYTES]);
/*
 * The token that a client of addr shows: the first line of `file`; without one (NULL) that of the server's own token
 * file, for a local address; else "", as a certificate may do. 0, or -errno and a line for people in err. ret has room
 * for SECRET_TOKEN_MAX (base/secret.h) and NUL; the caller wipes it.
 */
int token_to_show(const char *addr, const char *file, char *ret, char *err, size_t err_size);
/* SHA-256 of a token as credentials keep it; compare in constant time. */
int token_hash(const char *token, uint8_t ret_hash[32]);

#endif
