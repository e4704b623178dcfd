/* Protection domains, parent and thread domains, memory regions. */
#include "verbs_priv.h"

#include <string.h>
#include <sys/mman.h>

static struct vb_pd *pd_of(struct ibv_pd *pd)
{
    return container_of(pd, struct vb_pd, ibv);
}

/* ---- protection domains ---- */

static struct vb_pd *pd_new(struct vb_context *ctx)
{
    struct vb_pd *pd = calloc(1, sizeof *pd);
    if (!pd)
        return vb_null(-ENOMEM);
    pd->ibv.context = &ctx->v.context;
    return pd;
}

static struct ibv_pd *pd_add(struct vb_pd *pd)
{
    vb_add(vb_ctx(pd->ibv.context), VB_PD, &pd->obj);
    pd->ibv.handle = pd->obj.handle;
    return &pd->ibv;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
    struct vb_pd *pd = pd_new(vb_ctx(c));
    int r = pd ? uroce_pd_alloc(vb_ctx(c)->native, &pd->native) : 0;
    if (r) {
        free(pd);
        return vb_null(r);
    }
    return pd ? pd_add(pd) : NULL;
}

/* Of a domain that something borrows: `of` borrows its native object. */
static struct ibv_pd *borrow(struct vb_context *ctx, struct vb_pd *of, struct vb_td *td)
{
    struct vb_pd *pd = pd_new(ctx);
    if (!pd)
        return NULL;
    pd->of = of;
    pd->td = td;
    pd->native = of->native;
    atomic_fetch_add(&of->users, 1);
    if (td)
        atomic_fetch_add(&td->users, 1);
    return pd_add(pd);
}

int ibv_dealloc_pd(struct ibv_pd *ibv)
{
    struct vb_pd *pd = pd_of(ibv);
    if (atomic_load(&pd->users))
        return errno = EBUSY;
    int r = pd->of ? 0 : uroce_pd_dealloc(pd->native);
    if (r)
        return vb_result(r);
    vb_del(vb_ctx(ibv->context), &pd->obj);
    if (pd->of)
        atomic_fetch_sub(&pd->of->users, 1);
    if (pd->td)
        atomic_fetch_sub(&pd->td->users, 1);
    free(pd);
    return 0;
}

/*
 * The domain's own allocators are for memory of the adapter's queues in user space, which is not there: they are not
 * called. (An adapter may do so too: they are a wish.)
 */
struct ibv_pd *vb_alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *attr)
{
    if (!attr->pd ||
        attr->comp_mask & ~(uint32_t)(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT))
        return vb_null(-EINVAL);
    return borrow(vb_ctx(c), pd_of(attr->pd), attr->td ? container_of(attr->td, struct vb_td, ibv) : NULL);
}

struct ibv_td *vb_alloc_td(struct ibv_context *c, struct ibv_td_init_attr *attr)
{
    if (attr->comp_mask)
        return vb_null(-EOPNOTSUPP);
    struct vb_td *td = calloc(1, sizeof *td);
    if (!td)
        return vb_null(-ENOMEM);
    td->ibv.context = c;
    vb_add(vb_ctx(c), VB_TD, &td->obj);
    return &td->ibv;
}

int vb_dealloc_td(struct ibv_td *ibv)
{
    struct vb_td *td = container_of(ibv, struct vb_td, ibv);
    if (atomic_load(&td->users))
        return errno = EBUSY;
    vb_del(vb_ctx(ibv->context), &td->obj);
    free(td);
    return 0;
}

/* ---- memory regions ---- */

/*
 * An adapter finds at once that an address is not mapped (it pins the pages); here it would end the program later. With
 * on-demand paging that is the program's own affair. MS_ASYNC does nothing but look.
 */
static bool is_mapped(void *addr, size_t length)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = align_down((uintptr_t)addr, page);
    return msync((void *)from, length + ((uintptr_t)addr - from), MS_ASYNC) == 0 || errno != ENOMEM;
}

static int check(void *addr, size_t length, unsigned int access)
{
    if ((uintptr_t)addr + length < (uintptr_t)addr && !(access & IBV_ACCESS_ON_DEMAND && length == SIZE_MAX))
        return -EINVAL;
    if (access & IBV_ACCESS_ON_DEMAND || !length || is_mapped(addr, length))
        return 0;
    vb_debug("region refused: %p + %zu is not mapped", addr, length);
    return -EFAULT;
}

static void tell_keys(struct vb_mr *mr)
{
    mr->ibv.lkey = uroce_mr_lkey(mr->native);
    mr->ibv.rkey = uroce_mr_rkey(mr->native);
}

struct vb_mr *vb_mr_new(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
    struct vb_mr *mr = calloc(1, sizeof *mr);
    if (!mr)
        return vb_null(-ENOMEM);
    int r = uroce_mr_reg(pd_of(pd)->native, addr, length, iova, access & ~VB_ACCESS_IGNORED, &mr->native);
    if (r) {
        vb_debug("region refused: %p + %zu, access 0x%x: %s", addr, length, access, strerror(-r));
        free(mr);
        return vb_null(r);
    }
    mr->ibv.context = pd->context;
    mr->ibv.pd = pd;
    mr->ibv.addr = addr;
    mr->ibv.length = length;
    vb_add(vb_ctx(pd->context), VB_MR, &mr->obj);
    mr->ibv.handle = mr->obj.handle;
    tell_keys(mr);
    return mr;
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
    int r = check(addr, length, access);
    if (r)
        return vb_null(r);
    struct vb_mr *mr = vb_mr_new(pd, addr, length, iova, access);
    return mr ? &mr->ibv : NULL;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
    return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned int)access);
}

#undef ibv_reg_mr_iova
struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access)
{
    return ibv_reg_mr_iova2(pd, addr, length, iova, (unsigned int)access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access)
{
    (void)pd, (void)iova, (void)access;
    return vb_refuse_ptr("reg_dmabuf_mr: descriptor %d, %zu bytes at %llu: the memory of other devices is out of reach",
                         fd, length, (unsigned long long)offset);
}

int ibv_rereg_mr(struct ibv_mr *ibv, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
    struct vb_mr *mr = container_of(ibv, struct vb_mr, ibv);
    if (!flags || flags & ~IBV_REREG_MR_FLAGS_SUPPORTED || mr->of || atomic_load(&mr->users) ||
        (flags & IBV_REREG_MR_CHANGE_TRANSLATION && (!addr || !length)) || (flags & IBV_REREG_MR_CHANGE_PD && !pd) ||
        (flags & IBV_REREG_MR_CHANGE_ACCESS && access < 0)) {
        errno = EINVAL;
        return IBV_REREG_MR_ERR_INPUT;
    }
    /* What the flags do not name may be anything. */
    struct uroce_pd *native_pd = flags & IBV_REREG_MR_CHANGE_PD ? pd_of(pd)->native : NULL;
    unsigned int rights = flags & IBV_REREG_MR_CHANGE_ACCESS ? (unsigned int)access : 0;
    int r = flags & IBV_REREG_MR_CHANGE_TRANSLATION ? check(addr, length, rights) : 0;
    if (!r)
        r = uroce_mr_rereg(mr->native, (unsigned int)flags, native_pd, addr, length, (uintptr_t)addr,
                           rights & ~VB_ACCESS_IGNORED);
    if (r) {
        errno = -r;
        return IBV_REREG_MR_ERR_INPUT; /* the region is as it was */
    }
    if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
        ibv->addr = addr;
        ibv->length = length;
    }
    if (flags & IBV_REREG_MR_CHANGE_PD) {
        ibv->context = pd->context;
        ibv->pd = pd;
    }
    tell_keys(mr);
    return 0;
}

int ibv_dereg_mr(struct ibv_mr *ibv)
{
    struct vb_mr *mr = container_of(ibv, struct vb_mr, ibv);
    if (atomic_load(&mr->users))
        return errno = EBUSY;
    int r = mr->of ? 0 : uroce_mr_dereg(mr->native);
    if (r)
        return vb_result(r);
    vb_del(vb_ctx(ibv->context), &mr->obj);
    if (mr->of)
        atomic_fetch_sub(&mr->of->users, 1);
    if (mr->dm)
        atomic_fetch_sub(&mr->dm->users, 1);
    free(mr);
    return 0;
}

/* Pages come when they are touched; a wish to have them earlier is granted by the kernel. */
int vb_advise_mr(struct ibv_pd *pd, enum ibv_advise_mr_advice advice, uint32_t flags, struct ibv_sge *sg,
                 uint32_t num_sge)
{
    (void)pd;
    if (advice > IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT)
        return vb_refuse("advise_mr: advice %d is not known", (int)advice);
    if (flags & ~(uint32_t)IBV_ADVISE_MR_FLAG_FLUSH)
        return errno = EINVAL;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (uint32_t i = 0; i < num_sge; i++) {
        uintptr_t from = align_down(sg[i].addr, page);
        madvise((void *)from, sg[i].length + (sg[i].addr - from), MADV_WILLNEED);
    }
    return 0;
}

/* ---- import: another context's objects, of the same device and process ---- */

struct ibv_pd *ibv_import_pd(struct ibv_context *c, uint32_t handle)
{
    struct vb_object *o = vb_find_handle(vb_ctx(c), VB_PD, handle);
    return o ? borrow(vb_ctx(c), container_of(o, struct vb_pd, obj), NULL) : vb_null(-ENOENT);
}

void ibv_unimport_pd(struct ibv_pd *pd)
{
    ibv_dealloc_pd(pd);
}

struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t handle)
{
    struct vb_object *o = vb_find_handle(vb_ctx(pd->context), VB_MR, handle);
    struct vb_mr *mr = o ? calloc(1, sizeof *mr) : NULL;
    if (!mr)
        return vb_null(o ? -ENOMEM : -ENOENT);
    struct vb_mr *of = container_of(o, struct vb_mr, obj);
    mr->ibv = of->ibv;
    mr->ibv.context = pd->context;
    mr->ibv.pd = pd;
    mr->native = of->native;
    mr->of = of;
    atomic_fetch_add(&of->users, 1);
    vb_add(vb_ctx(pd->context), VB_MR, &mr->obj);
    mr->ibv.handle = mr->obj.handle;
    return &mr->ibv;
}

void ibv_unimport_mr(struct ibv_mr *mr)
{
    ibv_dereg_mr(mr);
}
