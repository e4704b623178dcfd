/* Device memory: memory of the process, since the device is one too. */
#include "verbs_priv.h"

#include <string.h>

#define ALL_MASK ((uint32_t)IBV_DM_MASK_HANDLE)

/* Whole words, as adapters' memory is accessed. */
static bool in_range(const struct vb_dm *dm, uint64_t offset, size_t length)
{
    return offset <= dm->len && length <= dm->len - offset && !(offset % 4) && !(length % 4);
}

int vb_dm_write(struct ibv_dm *ibv, uint64_t offset, const void *from, size_t length)
{
    struct vb_dm *dm = container_of(ibv, struct vb_dm, ibv);
    if (!in_range(dm, offset, length))
        return errno = EINVAL;
    memcpy(dm->mem + offset, from, length);
    return 0;
}

int vb_dm_read(void *to, struct ibv_dm *ibv, uint64_t offset, size_t length)
{
    struct vb_dm *dm = container_of(ibv, struct vb_dm, ibv);
    if (!in_range(dm, offset, length))
        return errno = EINVAL;
    memcpy(to, dm->mem + offset, length);
    return 0;
}

static struct ibv_dm *dm_add(struct ibv_context *c, struct vb_dm *dm)
{
    vb_add(vb_ctx(c), VB_DM, &dm->obj);
    dm->ibv = (struct ibv_dm){.context = c,
                              .memcpy_to_dm = vb_dm_write,
                              .memcpy_from_dm = vb_dm_read,
                              .comp_mask = ALL_MASK,
                              .handle = dm->obj.handle};
    return &dm->ibv;
}

struct ibv_dm *vb_alloc_dm(struct ibv_context *c, struct ibv_alloc_dm_attr *attr)
{
    if (attr->comp_mask)
        return vb_refuse_ptr("alloc_dm: comp_mask 0x%x is not known", attr->comp_mask);
    if (!attr->length || attr->length > VB_DM_MAX || attr->log_align_req > 20) {
        vb_debug("alloc_dm refused: %zu bytes (at most %llu), aligned to 2^%u", attr->length, VB_DM_MAX,
                 attr->log_align_req);
        return vb_null(attr->length > VB_DM_MAX ? -ENOMEM : -EINVAL);
    }
    size_t align = (size_t)max_u64(1ull << attr->log_align_req, 64), len = align_up(attr->length, align);
    struct vb_dm *dm = calloc(1, sizeof *dm);
    if (dm)
        dm->mem = aligned_alloc(align, len);
    if (!dm || !dm->mem) {
        free(dm);
        return vb_null(-ENOMEM);
    }
    memset(dm->mem, 0, len);
    dm->len = attr->length;
    return dm_add(c, dm);
}

int vb_free_dm(struct ibv_dm *ibv)
{
    struct vb_dm *dm = container_of(ibv, struct vb_dm, ibv);
    if (atomic_load(&dm->users))
        return errno = EBUSY;
    vb_del(vb_ctx(ibv->context), &dm->obj);
    if (dm->of)
        atomic_fetch_sub(&dm->of->users, 1);
    else
        free(dm->mem);
    free(dm);
    return 0;
}

/* Requests name the memory by offsets, as on adapters: it has no address of the host's. */
struct ibv_mr *vb_reg_dm_mr(struct ibv_pd *pd, struct ibv_dm *ibv, uint64_t offset, size_t length, unsigned int access)
{
    struct vb_dm *dm = container_of(ibv, struct vb_dm, ibv);
    if (offset > dm->len || length > dm->len - offset || !(access & IBV_ACCESS_ZERO_BASED)) {
        vb_debug("reg_dm_mr refused: %zu bytes at %llu of %zu, access 0x%x (ZERO_BASED is needed)", length,
                 (unsigned long long)offset, dm->len, access);
        return vb_null(-EINVAL);
    }
    struct vb_mr *mr = vb_mr_new(pd, dm->mem + offset, length, 0, access);
    if (!mr)
        return NULL;
    mr->dm = dm;
    mr->ibv.addr = NULL;
    atomic_fetch_add(&dm->users, 1);
    return &mr->ibv;
}

struct ibv_dm *ibv_import_dm(struct ibv_context *c, uint32_t handle)
{
    struct vb_object *o = vb_find_handle(vb_ctx(c), VB_DM, handle);
    struct vb_dm *dm = o ? calloc(1, sizeof *dm) : NULL;
    if (!dm)
        return vb_null(o ? -ENOMEM : -ENOENT);
    struct vb_dm *of = container_of(o, struct vb_dm, obj);
    dm->of = of;
    dm->mem = of->mem;
    dm->len = of->len;
    atomic_fetch_add(&of->users, 1);
    return dm_add(c, dm);
}

void ibv_unimport_dm(struct ibv_dm *dm)
{
    vb_free_dm(dm);
}
