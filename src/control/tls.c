/* A small certificate authority for `penstock tls init`: EC P-256, SHA-256, X.509v3. */
#include "control/tls.h"

#include "base/rng.h"
#include "base/util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define CA_DAYS   3650
#define CERT_DAYS 825 /* what common verifiers take as the longest for a server */
#define BACKDATE  300 /* seconds: clocks of two machines differ */

/* A certificate with its key, or half-built. */
struct pair {
    X509 *cert;
    EVP_PKEY *key;
};

static void pair_done(struct pair *p)
{
    X509_free(p->cert);
    EVP_PKEY_free(p->key);
}

static int fail(char *err, size_t err_size, int r, const char *what, const char *path)
{
    snprintf(err, err_size, "%s: %s: %s", path, what, strerror(-r));
    return r;
}

static bool add_ext(X509 *cert, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;
    X509_EXTENSION *e;
    bool ok;

    X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
    e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    ok = e && X509_add_ext(cert, e, -1);
    X509_EXTENSION_free(e);
    return ok;
}

static bool set_serial(X509 *cert)
{
    uint8_t b[16];
    BIGNUM *n;
    bool ok;

    rng_secret(b, sizeof b);
    b[0] &= 0x7f; /* positive */
    n = BN_bin2bn(b, sizeof b, NULL);
    ok = n && BN_to_ASN1_INTEGER(n, X509_get_serialNumber(cert));
    BN_free(n);
    return ok;
}

static bool set_name(X509 *cert, const char *cn)
{
    X509_NAME *n = X509_get_subject_name(cert);
    return X509_NAME_add_entry_by_txt(n, "O", MBSTRING_UTF8, (const unsigned char *)"Penstock", -1, -1, 0) &&
           X509_NAME_add_entry_by_txt(n, "CN", MBSTRING_UTF8, (const unsigned char *)cn, -1, -1, 0);
}

/* Unsigned: key, names, times, and the extensions that all have. issuer NULL: itself. */
static int make(const char *cn, long days, const struct pair *issuer, const char *usage, const char *san,
                struct pair *ret)
{
    struct pair p = {X509_new(), EVP_EC_gen("P-256")};
    X509 *by = issuer ? issuer->cert : p.cert;
    bool ca = !issuer,
         ok = p.cert && p.key && X509_set_version(p.cert, 2) && set_serial(p.cert) &&
              X509_gmtime_adj(X509_getm_notBefore(p.cert), -BACKDATE) &&
              X509_time_adj_ex(X509_getm_notAfter(p.cert), (int)days, 0, NULL) && X509_set_pubkey(p.cert, p.key) &&
              set_name(p.cert, cn) && X509_set_issuer_name(p.cert, X509_get_subject_name(by)) &&
              add_ext(p.cert, by, NID_basic_constraints, ca ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE") &&
              add_ext(p.cert, by, NID_key_usage, ca ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature") &&
              add_ext(p.cert, by, NID_subject_key_identifier, "hash") &&
              add_ext(p.cert, by, NID_authority_key_identifier, "keyid");

    if (ok && usage)
        ok = add_ext(p.cert, by, NID_ext_key_usage, usage);
    if (ok && san)
        ok = add_ext(p.cert, by, NID_subject_alt_name, san);
    if (ok)
        ok = X509_sign(p.cert, issuer ? issuer->key : p.key, EVP_sha256()) > 0;
    if (!ok) {
        pair_done(&p);
        return -EINVAL;
    }
    *ret = p;
    return 0;
}

/* ---- files ---- */

static FILE *create(const char *path, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f && fd >= 0)
        close(fd);
    return f;
}

/* Durable, so that a CA whose key was lost to a power cut is not in use. */
static int finish(FILE *f, bool ok)
{
    int r = !ok || fflush(f) || fsync(fileno(f)) ? -EIO : 0;
    return fclose(f) && !r ? -EIO : r;
}

/* NAME.key first: a certificate without a key is of no use, and the other way about is noticed at the next try. */
static int save(const char *dir, const char *name, const struct pair *p, char *err, size_t err_size)
{
    char key[600], cert[600];
    FILE *f;
    int r;

    if (snprintf(key, sizeof key, "%s/%s.key", dir, name) >= (int)sizeof key ||
        snprintf(cert, sizeof cert, "%s/%s.pem", dir, name) >= (int)sizeof cert)
        return fail(err, err_size, -ENAMETOOLONG, "cannot write", dir);
    f = create(key, 0600);
    r = f ? finish(f, PEM_write_PKCS8PrivateKey(f, p->key, NULL, NULL, 0, NULL, NULL) == 1) : -errno;
    if (r)
        return fail(err, err_size, r, "cannot write", key);
    f = create(cert, 0644);
    r = f ? finish(f, PEM_write_X509(f, p->cert) == 1) : -errno;
    if (r) {
        unlink(key);
        return fail(err, err_size, r, "cannot write", cert);
    }
    return 0;
}

static bool exists(const char *dir, const char *name, const char *suffix)
{
    char path[600];
    return snprintf(path, sizeof path, "%s/%s%s", dir, name, suffix) < (int)sizeof path && !access(path, F_OK);
}

static int load_ca(const char *dir, struct pair *ret, char *err, size_t err_size)
{
    char path[600];
    struct pair p = {0};
    FILE *f;

    snprintf(path, sizeof path, "%s/ca.pem", dir);
    f = fopen(path, "re");
    if (f) {
        p.cert = PEM_read_X509(f, NULL, NULL, NULL);
        fclose(f);
    }
    snprintf(path, sizeof path, "%s/ca.key", dir);
    f = fopen(path, "re");
    if (f) {
        p.key = PEM_read_PrivateKey(f, NULL, NULL, (void *)"");
        fclose(f);
    }
    if (!p.cert || !p.key || X509_check_private_key(p.cert, p.key) != 1) {
        pair_done(&p);
        return fail(err, err_size, -EINVAL, "ca.pem and ca.key are no pair", dir);
    }
    *ret = p;
    return 0;
}

/* ---- names ---- */

/* Letters, digits and what host and credential names have: nothing that the extension syntax would read. */
static bool name_ok(const char *s)
{
    size_t n = strlen(s);
    return n && n <= 63 && *s != '.' && *s != '-' &&
           strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-@") == n;
}

static int add_san(char *buf, size_t size, const char *name)
{
    uint8_t a[16];
    bool ip = inet_pton(AF_INET, name, a) == 1 || inet_pton(AF_INET6, name, a) == 1;
    size_t at = strlen(buf);
    int n;

    if (!ip && !name_ok(name))
        return -EINVAL;
    n = snprintf(buf + at, size - at, "%s%s:%s", at ? "," : "", ip ? "IP" : "DNS", name);
    return n < 0 || (size_t)n >= size - at ? -E2BIG : 0;
}

static int server_san(const struct tls_init *o, char *buf, size_t size, char *err, size_t err_size)
{
    char host[65] = "";
    const char *usual[] = {"localhost", "127.0.0.1", "::1", host};
    const char *const *names = o->nserver_names ? o->server_names : usual;
    size_t n = o->nserver_names ? o->nserver_names : ARRAY_SIZE(usual);

    gethostname(host, sizeof host - 1);
    if (!o->nserver_names && !name_ok(host))
        n--;
    *buf = 0;
    for (size_t i = 0; i < n; i++)
        if (add_san(buf, size, names[i])) {
            snprintf(err, err_size, "%s: not a host name or address, or too many of them", names[i]);
            return -EINVAL;
        }
    return 0;
}

/* Signs and saves one certificate. */
static int issue(const char *dir, const char *name, const char *cn, long days, const struct pair *ca, const char *usage,
                 const char *san, char *err, size_t err_size)
{
    struct pair p;
    int r = make(cn, days, ca, usage, san, &p);

    if (r)
        return fail(err, err_size, r, "cannot make a certificate", name);
    r = save(dir, name, &p, err, err_size);
    pair_done(&p);
    return r;
}

static int get_ca(const char *dir, struct pair *ret, char *err, size_t err_size)
{
    int r;

    if (exists(dir, "ca", ".pem") || exists(dir, "ca", ".key"))
        return load_ca(dir, ret, err, err_size);
    r = make("Penstock CA", CA_DAYS, NULL, NULL, NULL, ret);
    if (r)
        return fail(err, err_size, r, "cannot make a CA", dir);
    r = save(dir, "ca", ret, err, err_size);
    if (r)
        pair_done(ret);
    return r;
}

int tls_init(const char *dir, const struct tls_init *o, char *err, size_t err_size)
{
    const char *client = o->client_name ? o->client_name : "admin";
    long days = o->days ? (long)o->days : CERT_DAYS;
    char san[2048];
    struct pair ca;
    int r = server_san(o, san, sizeof san, err, err_size);

    if (r)
        return r;
    if (!name_ok(client) || !strcmp(client, "ca") || !strcmp(client, "server") || days > CA_DAYS) {
        snprintf(err, err_size, "%s: not a name for a client's certificate, or too many days", client);
        return -EINVAL;
    }
    if (exists(dir, client, ".pem") || exists(dir, client, ".key"))
        return fail(err, err_size, -EEXIST, "has a certificate here already, choose another --client", client);
    if (mkdir(dir, 0700) && errno != EEXIST)
        return fail(err, err_size, -errno, "cannot make the folder", dir);
    r = get_ca(dir, &ca, err, err_size);
    if (r)
        return r;
    if (!exists(dir, "server", ".pem") && !exists(dir, "server", ".key"))
        r = issue(dir, "server", o->nserver_names ? o->server_names[0] : "localhost", days, &ca, "serverAuth", san, err,
                  err_size);
    if (!r)
        r = issue(dir, client, client, days, &ca, "clientAuth", NULL, err, err_size);
    pair_done(&ca);
    return r;
}
