#include "fab_int.h"

#include "base/rng.h"

/* A key that nobody guesses, where the provider leaves it to us; as wide as its keys are. */
static uint64_t random_key(const struct fab *f)
{
    size_t bytes = f->info->domain_attr->mr_key_size;
    uint64_t key;

    do {
        rng_secret(&key, sizeof key);
        if (bytes && bytes < sizeof key)
            key &= (1ull << (8 * bytes)) - 1;
    } while (!key);
    return key;
}

int fab_mr_reg(struct fab_shard *s, void *addr, size_t len, uint32_t access, struct fab_mr **ret)
{
    uint64_t fi_access = FI_SEND | FI_RECV | FI_READ | FI_WRITE;
    struct fab_mr *m;
    int r = 0;

    if (!addr || !len || (uintptr_t)addr + len < (uintptr_t)addr || (access & ~(FAB_REMOTE_READ | FAB_REMOTE_WRITE)))
        return -EINVAL;
    m = calloc(1, sizeof *m);
    if (!m)
        return -ENOMEM;
    *m = (struct fab_mr){.s = s, .addr = addr, .len = len};
    if (access & FAB_REMOTE_READ)
        fi_access |= FI_REMOTE_READ;
    if (access & FAB_REMOTE_WRITE)
        fi_access |= FI_REMOTE_WRITE;
    if (access || s->f->need_local_mr) {
        /* Two registrations may meet at one key, if hardly ever with 64 bits. */
        for (int tries = 0; tries < 16; tries++) {
            r = fi_mr_reg(s->domain, addr, len, fi_access, 0, random_key(s->f), 0, &m->mr, NULL);
            if (r != -FI_ENOKEY && r != -FI_EALREADY && r != -EEXIST)
                break;
        }
        if (r) {
            free(m);
            return fab_errno(r);
        }
        m->desc = fi_mr_desc(m->mr);
    }
    list_push_back(&s->mrs, &m->link);
    *ret = m;
    return 0;
}

int fab_mr_reg_memfd(struct fab_shard *s, void *addr, size_t len, uint32_t access, int memfd, struct fab_mr **ret)
{
    int r = fab_mr_reg(s, addr, len, access, ret);

    if (r == 0)
        (*ret)->lent = memfd >= 0 && fab_shares(s->f) && fab_verbs_lend(addr, len, memfd);
    return r;
}

bool fab_shares(const struct fab *f)
{
    return f->facts.rdma && !strcmp(f->facts.verbs, "uroce");
}

void fab_mr_close(struct fab_mr *m)
{
    if (!m)
        return;
    list_del(&m->link);
    if (m->mr)
        fi_close(&m->mr->fid);
    if (m->lent)
        fab_verbs_take_back(m->addr);
    free(m);
}

void fab_mrs_drop(struct fab_shard *s)
{
    struct list *l;

    while ((l = list_pop_front(&s->mrs))) {
        struct fab_mr *m = list_entry(l, struct fab_mr, link);

        if (m->mr)
            fi_close(&m->mr->fid);
        m->mr = NULL;
        m->s = NULL;
    }
}

void fab_mr_remote(const struct fab_mr *m, const void *p, uint64_t *ret_addr, uint64_t *ret_key)
{
    bool virt = m->s->f->facts.mr_mode & FI_MR_VIRT_ADDR;

    *ret_addr = virt ? (uint64_t)(uintptr_t)p : (uint64_t)((const uint8_t *)p - m->addr);
    *ret_key = m->mr ? fi_mr_key(m->mr) : 0;
}
