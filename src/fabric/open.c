#include "fab_int.h"

static struct fi_info *hints_new(const struct fab_lib *lib, const char *provider, const char *device)
{
    struct fi_info *h = lib->dupinfo(NULL);

    if (!h)
        return NULL;
    h->ep_attr->type = FI_EP_MSG;
    h->caps = FI_MSG | FI_SEND | FI_RECV | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    h->mode = FI_CONTEXT | FI_CONTEXT2;
    /*
     * What we can do for a provider. FI_MR_ENDPOINT is not among it: a registration would belong to one connection, and
     * pools are shared by all of a shard. No provider of connected endpoints asks for it.
     */
    h->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    h->domain_attr->threading = FI_THREAD_DOMAIN;
    /* Our thread drives it: no provider thread beside it. */
    h->domain_attr->control_progress = h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
    h->domain_attr->resource_mgmt = FI_RM_UNSPEC;
    h->tx_attr->msg_order = h->rx_attr->msg_order = FI_ORDER_SAS | FI_ORDER_SAW;
    h->tx_attr->iov_limit = FAB_RMA_IOV_MAX;
    h->tx_attr->inject_size = sizeof(struct fab_head);
    h->fabric_attr->prov_name = strdup(provider);
    h->domain_attr->name = device ? strdup(device) : NULL;
    if (!h->fabric_attr->prov_name || (device && !h->domain_attr->name)) {
        lib->freeinfo(h);
        return NULL;
    }
    return h;
}

static int try_provider(const struct fab_lib *lib, const char *provider, const char *device, struct fi_info **ret)
{
    struct fi_info *h = hints_new(lib, provider, device), *list = NULL;
    int err;

    if (!h)
        return -ENOMEM;
    err = lib->getinfo(FAB_API, NULL, NULL, 0, h, &list);
    lib->freeinfo(h);
    if (err)
        return err == -FI_ENOMEM ? -ENOMEM : -ENODEV;
    *ret = lib->dupinfo(list);
    lib->freeinfo(list);
    return *ret ? 0 : -ENOMEM;
}

static bool is_rdma(const char *provider)
{
    return !strncmp(provider, "verbs", 5);
}

/* Before libfabric is loaded: which verbs it is to find. ret_name: libfabric's name of the provider, NULL: any. */
static int choose_verbs(const struct fab_config *cfg, const char **ret_name, char *err, size_t size)
{
    const char *want = cfg->provider && strcmp(cfg->provider, "auto") ? cfg->provider : NULL;
    bool forced = want && !strcmp(want, "uroce");
    int r;

    if (forced || (want && is_rdma(want) && cfg->uroce_instead && !fab_rdma_device())) {
        r = fab_verbs_use_uroce(err, size);
        if (r)
            return r;
    }
    *ret_name = forced ? "verbs" : want;
    return 0;
}

static int choose(const struct fab_lib *lib, const struct fab_config *cfg, const char *want, struct fi_info **ret,
                  char *err, size_t size)
{
    const char *device = cfg->device ? cfg->device : "any";
    int r;

    if (want && cfg->require_rdma && !is_rdma(want)) {
        snprintf(err, size,
                 "provider %s moves bytes without RDMA, but RDMA is required: set provider = verbs, or do "
                 "not require RDMA",
                 want);
        return -ENODEV;
    }
    r = try_provider(lib, want ? want : "verbs", cfg->device, ret);
    if (r == -ENODEV && !want && !cfg->require_rdma)
        r = try_provider(lib, "tcp", cfg->device, ret);
    if (r == -ENODEV && want && is_rdma(want) && !strcmp(fab_verbs_name(), "uroce"))
        snprintf(err, size,
                 "verbs on uroce is not usable here (device: %s): a line before this says why, if the device cannot "
                 "be opened; libfabric's verbs needs an address that is not loopback; `uroce doctor` says what else "
                 "may be in the way; or set provider = tcp",
                 device);
    else if (r == -ENODEV && want)
        snprintf(err, size,
                 "libfabric's provider %s is not usable here (device: %s): see `fi_info -p %s -t FI_EP_MSG`, "
                 "or set provider = tcp",
                 want, device, want);
    else if (r == -ENODEV && cfg->require_rdma)
        snprintf(err, size,
                 "RDMA is required and no verbs device was found (device: %s): see ibv_devices, or do not "
                 "require RDMA",
                 device);
    else if (r == -ENODEV)
        snprintf(err, size, "no usable libfabric provider (device: %s): see `fi_info -t FI_EP_MSG`", device);
    else if (r)
        snprintf(err, size, "libfabric: %s", strerror(-r));
    return r;
}

static int take_facts(struct fab *f, const char *device, char *err, size_t size)
{
    const struct fi_info *i = f->info;
    uint64_t known = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

    snprintf(f->facts.provider, sizeof f->facts.provider, "%s", i->fabric_attr->prov_name);
    snprintf(f->facts.library, sizeof f->facts.library, "libfabric %u.%u", FI_MAJOR(f->lib->version()),
             FI_MINOR(f->lib->version()));
    f->facts.rdma = is_rdma(f->facts.provider);
    snprintf(f->facts.verbs, sizeof f->facts.verbs, "%s", fab_verbs_name());
    /* Over the kernel's sockets libfabric names the first interface, whichever the bytes take. */
    snprintf(f->facts.device, sizeof f->facts.device, "%s",
             !f->facts.rdma && !device ? "any" : i->domain_attr->name ? i->domain_attr->name : "");
    f->facts.mr_mode = (uint64_t)(unsigned)i->domain_attr->mr_mode;
    f->facts.inject_max = i->tx_attr->inject_size;
    if ((f->facts.mr_mode & ~known) || !(i->tx_attr->msg_order & FI_ORDER_SAW) ||
        !(i->rx_attr->msg_order & FI_ORDER_SAW) || i->tx_attr->iov_limit < FAB_RMA_IOV_MAX ||
        i->ep_attr->msg_prefix_size || f->facts.inject_max < sizeof(struct fab_head) ||
        i->rx_attr->size <= FAB_EXTRA_RECVS) {
        snprintf(err, size,
                 "provider %s of %s lacks what is needed (order of writes and sends, %u segments): set another "
                 "provider",
                 f->facts.provider, f->facts.library, FAB_RMA_IOV_MAX);
        return -ENODEV;
    }
    f->need_local_mr = f->facts.mr_mode & FI_MR_LOCAL;
    f->tcp_like = !strcmp(f->facts.provider, "tcp") || !strcmp(f->facts.provider, "net");
    /* uroce pins no memory either. */
    f->frame_max = f->tcp_like || !strcmp(f->facts.verbs, "uroce") ? FAB_FRAME_LARGE : FAB_FRAME_SMALL;
    f->bounded_cq = f->facts.rdma;
    f->double_flush = f->tcp_like && f->lib->version() < FI_VERSION(1, 18);
    f->sticky_fds = !strcmp(f->facts.provider, "net") ||
                    (f->tcp_like && FI_MAJOR(f->lib->version()) == 1 && FI_MINOR(f->lib->version()) == 18);
    return 0;
}

int fab_open(const struct fab_config *cfg, struct fab **ret, char *err, size_t err_size)
{
    struct fab *f = calloc(1, sizeof *f);
    const char *want;
    int r;

    if (!f) {
        snprintf(err, err_size, "out of memory");
        return -ENOMEM;
    }
    r = choose_verbs(cfg, &want, err, err_size);
    if (!r)
        r = fab_lib_load(&f->lib, err, err_size);
    if (!r)
        r = choose(f->lib, cfg, want, &f->info, err, err_size);
    if (!r)
        r = take_facts(f, cfg->device, err, err_size);
    if (r) {
        fab_close(f);
        return r;
    }
    f->credits = (uint32_t)min_u64(cfg->credits ? cfg->credits : FAB_CREDITS, FAB_CREDITS_MAX);
    f->credits = (uint32_t)min_u64(f->credits, f->info->rx_attr->size - FAB_EXTRA_RECVS);
    f->spin_ns = cfg->spin_us == UINT32_MAX ? UINT64_MAX : (cfg->spin_us ? cfg->spin_us : FAB_SPIN_US) * 1000ull;
    f->connect_ns = (cfg->connect_ms ? cfg->connect_ms : FAB_CONNECT_MS) * NSEC_PER_MSEC;
    f->half_open_ns = (cfg->half_open_ms ? cfg->half_open_ms : FAB_HALF_OPEN_MS) * NSEC_PER_MSEC;
    *ret = f;
    return 0;
}

void fab_close(struct fab *f)
{
    if (!f)
        return;
    if (f->info)
        f->lib->freeinfo(f->info);
    free(f);
}

const struct fab_info *fab_info(const struct fab *f)
{
    return &f->facts;
}
