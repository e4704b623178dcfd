/* Credentials for gRPC from PEM files, reread by the server when the files change. */
#include "rpc_priv.h"

#define LOG_COMPONENT "control"
#include "base/crypto.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define PEM_MAX (256u * 1024) /* bytes of one file: a bundle of some dozens of certificates */

struct pems {
    char *ca, *cert, *key; /* owned */
};

static void pems_done(struct pems *p)
{
    if (p->key)
        pst_wipe(p->key, strlen(p->key));
    free(p->ca);
    free(p->cert);
    free(p->key);
    *p = (struct pems){0};
}

static int read_pem(const char *path, char **ret, char *err, size_t err_size)
{
    cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused, not waited for */
    struct stat st;
    char *buf;
    size_t n = 0;
    int r = fd < 0 || fstat(fd, &st) ? -errno : !S_ISREG(st.st_mode) || st.st_size > PEM_MAX ? -EINVAL : 0;

    buf = r ? NULL : calloc(1, (size_t)st.st_size + 1);
    if (!r && !buf)
        r = -ENOMEM;
    while (!r && n < (size_t)st.st_size) {
        ssize_t k = read(fd, buf + n, (size_t)st.st_size - n);
        if (k <= 0) {
            r = k < 0 ? -errno : -EINVAL; /* it shrank under us */
            break;
        }
        n += (size_t)k;
    }
    if (r) {
        free(buf);
        snprintf(err, err_size, "%s: %s", path, strerror(-r));
        return r;
    }
    *ret = buf;
    return 0;
}

/* Are these certificates, and does the key belong to the certificate? A half-written pair must not be taken. */
static int check_pems(const struct rpc_tls *files, const struct pems *p, char *err, size_t err_size)
{
    BIO *bc = BIO_new_mem_buf(p->cert, -1), *bk = BIO_new_mem_buf(p->key, -1), *ba = BIO_new_mem_buf(p->ca, -1);
    X509 *cert = bc ? PEM_read_bio_X509(bc, NULL, NULL, NULL) : NULL;
    X509 *ca = ba ? PEM_read_bio_X509(ba, NULL, NULL, NULL) : NULL;
    /* An empty pass phrase: never ask a terminal. */
    EVP_PKEY *key = bk ? PEM_read_bio_PrivateKey(bk, NULL, NULL, (void *)"") : NULL;
    int r = -EINVAL;

    if (!ca)
        snprintf(err, err_size, "%s: no certificate in PEM form", files->ca_file);
    else if (!cert)
        snprintf(err, err_size, "%s: no certificate in PEM form", files->cert_file);
    else if (!key)
        snprintf(err, err_size, "%s: no private key in PEM form (or it has a pass phrase)", files->key_file);
    else if (X509_check_private_key(cert, key) != 1)
        snprintf(err, err_size, "%s is not the key of %s", files->key_file, files->cert_file);
    else
        r = 0;
    ERR_clear_error();
    X509_free(cert);
    X509_free(ca);
    EVP_PKEY_free(key);
    BIO_free(bc);
    BIO_free(bk);
    BIO_free(ba);
    return r;
}

static int load(const struct rpc_tls *files, struct pems *ret, char *err, size_t err_size)
{
    struct pems p = {0};
    int r;

    if (!files->ca_file || !files->cert_file || !files->key_file) {
        snprintf(err, err_size, "TLS needs three files: CA, certificate, key");
        return -EINVAL;
    }
    r = read_pem(files->ca_file, &p.ca, err, err_size);
    if (!r)
        r = read_pem(files->cert_file, &p.cert, err, err_size);
    if (!r)
        r = read_pem(files->key_file, &p.key, err, err_size);
    if (!r)
        r = check_pems(files, &p, err, err_size);
    if (r)
        pems_done(&p);
    else
        *ret = p;
    return r;
}

int rpc_channel_creds(const struct rpc_tls *files, grpc_channel_credentials **ret, char *err, size_t err_size)
{
    struct pems p;
    int r = load(files, &p, err, err_size);

    if (r)
        return r;
    *ret = grpc_ssl_credentials_create_ex(p.ca, &(grpc_ssl_pem_key_cert_pair){p.key, p.cert}, NULL, NULL);
    pems_done(&p);
    if (!*ret) {
        snprintf(err, err_size, "gRPC refuses the certificates");
        return -EINVAL;
    }
    return 0;
}

/* ---- server: the files are looked at for each handshake ---- */

struct stamp {
    struct timespec mtime;
    ino_t ino;
    off_t size;
};

struct rpc_server_tls {
    char *paths[3];
    struct rpc_tls files; /* points to paths */
    pthread_mutex_t mu;
    struct stamp seen[3];
    bool fetched;
};

static bool look(const struct rpc_server_tls *t, struct stamp ret[3])
{
    for (int i = 0; i < 3; i++) {
        struct stat st;
        if (stat(t->paths[i], &st))
            return false;
        ret[i] = (struct stamp){st.st_mtim, st.st_ino, st.st_size};
    }
    return true;
}

static bool same(const struct stamp *a, const struct stamp *b)
{
    for (int i = 0; i < 3; i++)
        if (a[i].mtime.tv_sec != b[i].mtime.tv_sec || a[i].mtime.tv_nsec != b[i].mtime.tv_nsec ||
            a[i].ino != b[i].ino || a[i].size != b[i].size)
            return false;
    return true;
}

/* Keeps what it has while the files are missing or do not fit: the next handshake looks again. */
static grpc_ssl_certificate_config_reload_status fetch(void *user, grpc_ssl_server_certificate_config **ret)
{
    struct rpc_server_tls *t = user;
    struct stamp now[3];
    struct pems p;
    char err[256];

    scoped_lock(&t->mu);
    if (!look(t, now))
        return t->fetched ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    if (t->fetched && same(now, t->seen))
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    if (load(&t->files, &p, err, sizeof err)) {
        log_warn("certificates not reloaded: %s", err);
        return t->fetched ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    }
    *ret = grpc_ssl_server_certificate_config_create(p.ca, &(grpc_ssl_pem_key_cert_pair){p.key, p.cert}, 1);
    pems_done(&p);
    if (t->fetched)
        log_info("certificates reloaded from %s", t->files.cert_file);
    memcpy(t->seen, now, sizeof now);
    t->fetched = true;
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

int rpc_server_tls_new(const struct rpc_tls *files, struct rpc_server_tls **ret, char *err, size_t err_size)
{
    struct rpc_server_tls *t;
    struct pems p;
    int r = load(files, &p, err, err_size);

    if (r)
        return r;
    pems_done(&p);
    t = calloc(1, sizeof *t);
    if (!t)
        return -ENOMEM;
    pthread_mutex_init(&t->mu, NULL);
    t->paths[0] = strdup(files->ca_file);
    t->paths[1] = strdup(files->cert_file);
    t->paths[2] = strdup(files->key_file);
    if (!t->paths[0] || !t->paths[1] || !t->paths[2]) {
        rpc_server_tls_free(t);
        return -ENOMEM;
    }
    t->files = (struct rpc_tls){t->paths[0], t->paths[1], t->paths[2]};
    *ret = t;
    return 0;
}

grpc_server_credentials *rpc_server_tls_creds(struct rpc_server_tls *t)
{
    return grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, fetch, t));
}

void rpc_server_tls_free(struct rpc_server_tls *t)
{
    if (!t)
        return;
    for (int i = 0; i < 3; i++)
        free(t->paths[i]);
    pthread_mutex_destroy(&t->mu);
    free(t);
}
