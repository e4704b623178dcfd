/* Addresses: of sockets and of the device; rdma_getaddrinfo. */
#include "rdmacm_priv.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <string.h>

bool cma_is_any(const union uroce_gid *g)
{
    static const union uroce_gid zero;
    return vb_gid_is_v4(g->raw) ? !memcmp(g->raw + 12, zero.raw, 4) : !memcmp(g, &zero, sizeof zero);
}

void cma_keep_sockaddr(struct sockaddr_storage *to, const struct sockaddr *sa)
{
    memcpy(to, sa, sa->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
}

int cma_addr_of(const struct sockaddr *sa, struct uroce_cm_addr *ret)
{
    const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sa;
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)sa;
    *ret = (struct uroce_cm_addr){.port = 0};
    if (sa->sa_family == AF_INET) {
        ret->gid.raw[10] = ret->gid.raw[11] = 0xff;
        memcpy(ret->gid.raw + 12, &in->sin_addr, 4);
        ret->port = ntohs(in->sin_port);
        return 0;
    }
    if (sa->sa_family != AF_INET6)
        return -EAFNOSUPPORT;
    memcpy(ret->gid.raw, &in6->sin6_addr, 16);
    ret->port = ntohs(in6->sin6_port);
    return 0;
}

/* family: AF_INET6 for an IPv4 address gives the mapped one; 0: the address's own. */
void cma_sockaddr_of(const struct uroce_cm_addr *a, int family, struct sockaddr_storage *ret)
{
    struct sockaddr_in *in = (struct sockaddr_in *)ret;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)ret;
    memset(ret, 0, sizeof *ret);
    if (family != AF_INET6 && vb_gid_is_v4(a->gid.raw)) {
        in->sin_family = AF_INET;
        in->sin_port = htons(a->port);
        memcpy(&in->sin_addr, a->gid.raw + 12, 4);
    } else {
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons(a->port);
        memcpy(&in6->sin6_addr, a->gid.raw, 16);
    }
}

static void keep_scope(struct sockaddr_storage *to, const struct sockaddr_storage *from)
{
    struct sockaddr_in6 *t = (struct sockaddr_in6 *)to;
    const struct sockaddr_in6 *f = (const struct sockaddr_in6 *)from;
    if (to->ss_family == AF_INET6 && from->ss_family == AF_INET6 && !memcmp(&t->sin6_addr, &f->sin6_addr, 16))
        t->sin6_scope_id = f->sin6_scope_id;
}

void cma_show_addresses(struct cma_id *id)
{
    struct rdma_addr *a = &id->id.route.addr;
    struct sockaddr_storage was;
    struct uroce_cm_info info;
    if (!id->nnative)
        return;
    uroce_cm_query(id->native[0], &info);
    was = a->src_storage;
    /* Any address: of the family that the program said. */
    bool any6 = was.ss_family == AF_INET6 && cma_is_any(&info.local.gid);
    cma_sockaddr_of(&info.local, any6 ? AF_INET6 : 0, &a->src_storage);
    keep_scope(&a->src_storage, &was);
    if (!cma_is_any(&info.remote.gid)) {
        was = a->dst_storage;
        cma_sockaddr_of(&info.remote, 0, &a->dst_storage);
        keep_scope(&a->dst_storage, &was);
    }
    if (id->dev) {
        memcpy(a->addr.ibaddr.sgid.raw, info.local.gid.raw, 16);
        memcpy(a->addr.ibaddr.dgid.raw, info.remote.gid.raw, 16);
        a->addr.ibaddr.pkey = htons(VB_PKEY);
    }
}

/* Of both families it lies in the same place. */
static __be16 port_of(const struct sockaddr_storage *a)
{
    bool ip = a->ss_family == AF_INET || a->ss_family == AF_INET6;
    return ip ? ((const struct sockaddr_in *)a)->sin_port : 0;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
    return port_of(&id->route.addr.src_storage);
}

__be16 rdma_get_dst_port(struct rdma_cm_id *id)
{
    return port_of(&id->route.addr.dst_storage);
}

/* ---- rdma_getaddrinfo ---- */

static int copy_addr(struct sockaddr **ret, socklen_t *ret_len, const struct sockaddr *from, socklen_t len)
{
    if (!len)
        return 0;
    *ret = malloc(len);
    if (!*ret)
        return -1;
    memcpy(*ret, from, len);
    *ret_len = len;
    return 0;
}

static void choose_kind(struct rdma_addrinfo *to, const struct rdma_addrinfo *hints, const struct addrinfo *ai)
{
    int ps = hints ? hints->ai_port_space : 0, qpt = hints ? hints->ai_qp_type : 0;
    if (!ps && ai)
        ps = ai->ai_socktype == SOCK_DGRAM ? RDMA_PS_UDP : RDMA_PS_TCP;
    if (!ps)
        ps = qpt == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP;
    if (!qpt)
        qpt = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
    to->ai_port_space = ps;
    to->ai_qp_type = qpt;
}

static int copy_hints(struct rdma_addrinfo *to, const struct rdma_addrinfo *hints)
{
    to->ai_flags = hints->ai_flags;
    to->ai_family = hints->ai_family;
    to->ai_port_space = hints->ai_port_space;
    to->ai_qp_type = hints->ai_qp_type;
    if (!to->ai_family)
        to->ai_family = hints->ai_src_len   ? hints->ai_src_addr->sa_family
                        : hints->ai_dst_len ? hints->ai_dst_addr->sa_family
                                            : AF_INET;
    return copy_addr(&to->ai_src_addr, &to->ai_src_len, hints->ai_src_addr, hints->ai_src_len) ||
                   copy_addr(&to->ai_dst_addr, &to->ai_dst_len, hints->ai_dst_addr, hints->ai_dst_len)
               ? EAI_MEMORY
               : 0;
}

static int look_up(const char *node, const char *service, const struct rdma_addrinfo *hints, struct addrinfo **ret)
{
    int flags = hints ? hints->ai_flags : 0;
    struct addrinfo h = {
        .ai_flags = (flags & RAI_PASSIVE ? AI_PASSIVE : 0) | (flags & RAI_NUMERICHOST ? AI_NUMERICHOST : 0),
        .ai_family = flags & RAI_FAMILY || (hints && hints->ai_family) ? hints->ai_family : AF_UNSPEC,
        .ai_socktype = SOCK_STREAM,
    };
    if (hints && (hints->ai_qp_type == IBV_QPT_UD || hints->ai_port_space == RDMA_PS_UDP))
        h.ai_socktype = SOCK_DGRAM;
    return getaddrinfo(node, service, &h, ret);
}

static int from_look_up(struct rdma_addrinfo *to, const struct rdma_addrinfo *hints, const struct addrinfo *ai)
{
    int r;
    to->ai_flags = hints ? hints->ai_flags : 0;
    to->ai_family = ai->ai_family;
    choose_kind(to, hints, ai);
    if (to->ai_flags & RAI_PASSIVE)
        return copy_addr(&to->ai_src_addr, &to->ai_src_len, ai->ai_addr, ai->ai_addrlen) ? EAI_MEMORY : 0;
    r = copy_addr(&to->ai_dst_addr, &to->ai_dst_len, ai->ai_addr, ai->ai_addrlen);
    if (!r && ai->ai_canonname && !(to->ai_dst_canonname = strdup(ai->ai_canonname)))
        r = -1;
    if (!r && hints)
        r = copy_addr(&to->ai_src_addr, &to->ai_src_len, hints->ai_src_addr, hints->ai_src_len);
    return r ? EAI_MEMORY : 0;
}

int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
                     struct rdma_addrinfo **res)
{
    struct addrinfo *ai = NULL;
    int r;
    if (!node && !service && !hints)
        return cma_fail(EINVAL);
    struct rdma_addrinfo *to = calloc(1, sizeof *to);
    if (!to)
        return EAI_MEMORY;
    if (node || service) {
        r = look_up(node, service, hints, &ai);
        if (!r)
            r = from_look_up(to, hints, ai);
        if (ai)
            freeaddrinfo(ai);
    } else {
        r = copy_hints(to, hints);
        if (!r)
            choose_kind(to, hints, NULL);
    }
    if (r) {
        rdma_freeaddrinfo(to);
        return r;
    }
    *res = to;
    return 0;
}

void rdma_freeaddrinfo(struct rdma_addrinfo *res)
{
    while (res) {
        struct rdma_addrinfo *next = res->ai_next;
        free(res->ai_src_addr);
        free(res->ai_dst_addr);
        free(res->ai_src_canonname);
        free(res->ai_dst_canonname);
        free(res->ai_route);
        free(res->ai_connect);
        free(res);
        res = next;
    }
}
