/* The extended interface of completion queues: start_poll, next_poll, end_poll and the readers in between. */
#include "verbs_priv.h"

static struct vb_cq *of(struct ibv_cq_ex *ex)
{
    return container_of(ex, struct vb_cq, ex);
}

/* The completion that was fetched becomes the current one; ENOENT: none was. */
static int show(struct vb_cq *cq, int fetched)
{
    if (fetched != 1)
        return fetched ? -fetched : ENOENT;
    cq->ex.wr_id = cq->wc.wr_id;
    cq->ex.status = (enum ibv_wc_status)cq->wc.status;
    return 0;
}

/* Those that are there: one that comes while a program that armed the queue polls would raise an event over nothing. */
static int next_poll(struct ibv_cq_ex *ex)
{
    struct vb_cq *cq = of(ex);
    return show(cq, uroce_take_cq(cq->native, 1, &cq->wc));
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
    struct vb_cq *cq = of(ex);
    if (attr->comp_mask)
        return EINVAL;
    if (!cq->single_threaded)
        pthread_mutex_lock(&cq->poll_lock);
    int r = show(cq, uroce_poll_cq(cq->native, 1, &cq->wc));
    if (r && !cq->single_threaded)
        pthread_mutex_unlock(&cq->poll_lock);
    return r;
}

static void end_poll(struct ibv_cq_ex *ex)
{
    uroce_cq_left(of(ex)->native);
    if (!of(ex)->single_threaded)
        pthread_mutex_unlock(&of(ex)->poll_lock);
}

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *ex)
{
    return (enum ibv_wc_opcode)of(ex)->wc.opcode;
}

static uint32_t read_vendor_err(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.vendor_err;
}

static uint32_t read_byte_len(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.byte_len;
}

static __be32 read_imm_data(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.imm_data;
}

static uint32_t read_qp_num(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.qp_num;
}

static uint32_t read_src_qp(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.src_qp;
}

static unsigned int read_wc_flags(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.wc_flags & ~(unsigned int)UROCE_WC_SLOT_VALUE;
}

static uint32_t read_slid(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.slid;
}

static uint8_t read_sl(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.sl;
}

static uint8_t read_dlid_path_bits(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.dlid_path_bits;
}

static uint64_t read_completion_ts(struct ibv_cq_ex *ex)
{
    return of(ex)->wc.timestamp_ns;
}

static uint64_t read_wallclock_ns(struct ibv_cq_ex *ex)
{
    int64_t offset = wall_ns() - (int64_t)now_ns();
    return of(ex)->wc.timestamp_ns + (uint64_t)offset;
}

/* Not asked for by any flag that create_cq_ex takes. */
static uint16_t read_cvlan(struct ibv_cq_ex *ex)
{
    (void)ex;
    return 0;
}

static uint32_t read_flow_tag(struct ibv_cq_ex *ex)
{
    (void)ex;
    return 0;
}

static void read_tm_info(struct ibv_cq_ex *ex, struct ibv_wc_tm_info *ret)
{
    (void)ex;
    *ret = (struct ibv_wc_tm_info){0};
}

void vb_cq_ex_init(struct vb_cq *cq, const struct ibv_cq_init_attr_ex *attr)
{
    cq->single_threaded =
        attr->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS && attr->flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    cq->ex.start_poll = start_poll;
    cq->ex.next_poll = next_poll;
    cq->ex.end_poll = end_poll;
    cq->ex.read_opcode = read_opcode;
    cq->ex.read_vendor_err = read_vendor_err;
    cq->ex.read_byte_len = read_byte_len;
    cq->ex.read_imm_data = read_imm_data;
    cq->ex.read_qp_num = read_qp_num;
    cq->ex.read_src_qp = read_src_qp;
    cq->ex.read_wc_flags = read_wc_flags;
    cq->ex.read_slid = read_slid;
    cq->ex.read_sl = read_sl;
    cq->ex.read_dlid_path_bits = read_dlid_path_bits;
    cq->ex.read_completion_ts = read_completion_ts;
    cq->ex.read_cvlan = read_cvlan;
    cq->ex.read_flow_tag = read_flow_tag;
    cq->ex.read_tm_info = read_tm_info;
    cq->ex.read_completion_wallclock_ns = read_wallclock_ns;
}
