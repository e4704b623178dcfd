/*
 * Server reflection, v1 and v1alpha (their messages are equal on the wire). The descriptors come from the build as one
 * FileDescriptorSet; of each file we only need its name, its imports and the symbols it defines, so the wire format is
 * walked here instead of generating code for descriptor.proto.
 */
#include "service_priv.h"

#include "grpc/reflection/v1/reflection.pb-c.h"

#include <errno.h>
#include <string.h>

extern const uint8_t ctl_descriptors[], ctl_descriptors_end[];

#define MSG(name)  GRPC__REFLECTION__V1__SERVER_REFLECTION_##name
#define FILES_MAX  32
#define FIELD_FILE 1 /* of FileDescriptorSet */
/* Fields of FileDescriptorProto; names within messages, enums and services are field 1 as well. */
#define FIELD_NAME       1
#define FIELD_PACKAGE    2
#define FIELD_DEPENDENCY 3
#define FIELD_MESSAGE    4
#define FIELD_ENUM       5
#define FIELD_SERVICE    6

struct span {
    const uint8_t *p;
    size_t n;
};

static uint64_t varint(struct span *s)
{
    uint64_t v = 0;
    for (unsigned shift = 0; s->n && shift < 64; shift += 7) {
        uint8_t b = *s->p++;
        s->n--;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80))
            break;
    }
    return v;
}

/* The next length-delimited field; others are skipped. Our own build made the bytes: no hostile input. */
static bool next_field(struct span *s, unsigned *ret_field, struct span *ret)
{
    while (s->n) {
        uint64_t tag = varint(s), n;
        switch (tag & 7) {
        case 0:
            varint(s);
            continue;
        case 2:
            n = varint(s);
            if (n > s->n)
                return false;
            *ret_field = (unsigned)(tag >> 3);
            *ret = (struct span){s->p, (size_t)n};
            s->p += n;
            s->n -= (size_t)n;
            return true;
        default:
            return false; /* descriptors have no fixed-size fields */
        }
    }
    return false;
}

static bool find_field(struct span in, unsigned want, struct span *ret)
{
    unsigned f;
    while (next_field(&in, &f, ret))
        if (f == want)
            return true;
    return false;
}

static bool span_is(struct span s, const char *text)
{
    return s.n == strlen(text) && !memcmp(s.p, text, s.n);
}

static struct span whole_set(void)
{
    return (struct span){ctl_descriptors, (size_t)(ctl_descriptors_end - ctl_descriptors)};
}

/* What of a full name is left after "package.": NULL if it is of another package. */
static const char *in_package(struct span file, const char *symbol)
{
    struct span package = {0};

    if (!find_field(file, FIELD_PACKAGE, &package))
        return symbol;
    return !strncmp(symbol, (const char *)package.p, package.n) && symbol[package.n] == '.' ? symbol + package.n + 1
                                                                                            : NULL;
}

/* Does the file define the symbol, or what it is a part of (a method, a nested message)? */
static bool defines(struct span file, const char *symbol)
{
    const char *rest = in_package(file, symbol);
    struct span def, name;
    unsigned f;

    if (!rest)
        return false;
    while (next_field(&file, &f, &def))
        if (f >= FIELD_MESSAGE && f <= FIELD_SERVICE && find_field(def, FIELD_NAME, &name) &&
            !strncmp(rest, (const char *)name.p, name.n) && (!rest[name.n] || rest[name.n] == '.'))
            return true;
    return false;
}

/* Calls fn with each service's full name until it returns true. */
static bool each_service(bool (*fn)(const char *name, void *arg), void *arg)
{
    struct span set = whole_set(), file, def, name, package;
    unsigned f, g;

    while (next_field(&set, &f, &file)) {
        if (!find_field(file, FIELD_PACKAGE, &package))
            continue;
        for (struct span at = file; next_field(&at, &g, &def);) {
            char full[128];
            if (g != FIELD_SERVICE || !find_field(def, FIELD_NAME, &name) || package.n + name.n + 2 > sizeof full)
                continue;
            memcpy(full, package.p, package.n);
            full[package.n] = '.';
            memcpy(full + package.n + 1, name.p, name.n);
            full[package.n + 1 + name.n] = 0;
            if (fn(full, arg))
                return true;
        }
    }
    return false;
}

static bool equal_name(const char *name, void *arg)
{
    return !strcmp(name, arg);
}

bool ctl_has_service(const char *name)
{
    return each_service(equal_name, (void *)name);
}

/* ---- answers, in the request's arena ---- */

typedef Grpc__Reflection__V1__ServerReflectionRequest request;
typedef Grpc__Reflection__V1__ServerReflectionResponse response;

struct services {
    struct ctl_req *q;
    Grpc__Reflection__V1__ListServiceResponse *list;
};

static bool add_service(const char *name, void *arg)
{
    struct services *s = arg;
    Grpc__Reflection__V1__ServiceResponse *m = arena_alloc(&s->q->a, sizeof *m);

    if (!m || s->list->n_service == FILES_MAX)
        return true;
    grpc__reflection__v1__service_response__init(m);
    m->name = arena_copy(&s->q->a, name, strlen(name));
    if (!m->name)
        return true;
    s->list->service[s->list->n_service++] = m;
    return false;
}

static int list_services(struct ctl_req *q, response *out)
{
    struct services s = {q, arena_alloc(&q->a, sizeof *s.list)};

    if (!s.list)
        return -ENOMEM;
    grpc__reflection__v1__list_service_response__init(s.list);
    s.list->service = arena_alloc(&q->a, FILES_MAX * sizeof *s.list->service);
    if (!s.list->service || each_service(add_service, &s))
        return -ENOMEM;
    out->message_response_case = MSG(RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE);
    out->list_services_response = s.list;
    return 0;
}

static int find_file(const char *name, const char *symbol, struct span *ret)
{
    struct span set = whole_set(), n;
    unsigned f;

    while (next_field(&set, &f, ret))
        if (f == FIELD_FILE && (name ? find_field(*ret, FIELD_NAME, &n) && span_is(n, name) : defines(*ret, symbol)))
            return 0;
    return -ENOENT;
}

static void add_file(Grpc__Reflection__V1__FileDescriptorResponse *m, struct span file)
{
    for (size_t i = 0; i < m->n_file_descriptor_proto; i++)
        if (m->file_descriptor_proto[i].data == file.p)
            return;
    if (m->n_file_descriptor_proto < FILES_MAX)
        m->file_descriptor_proto[m->n_file_descriptor_proto++] = (ProtobufCBinaryData){file.n, (uint8_t *)file.p};
}

/* Those that file i of the answer imports. */
static void add_imports(Grpc__Reflection__V1__FileDescriptorResponse *m, size_t i)
{
    struct span at = {m->file_descriptor_proto[i].data, m->file_descriptor_proto[i].len}, dep, imported;
    unsigned f;

    while (next_field(&at, &f, &dep)) {
        char path[128];
        if (f != FIELD_DEPENDENCY || dep.n >= sizeof path)
            continue;
        memcpy(path, dep.p, dep.n);
        path[dep.n] = 0;
        if (!find_file(path, NULL, &imported))
            add_file(m, imported);
    }
}

/* The file, and all that it imports, directly or not: a client needs them to understand it. */
static int files(struct ctl_req *q, const char *name, const char *symbol, response *out)
{
    Grpc__Reflection__V1__FileDescriptorResponse *m = arena_alloc(&q->a, sizeof *m);
    struct span file;
    int r = find_file(name, symbol, &file);

    if (r)
        return r;
    if (!m)
        return -ENOMEM;
    grpc__reflection__v1__file_descriptor_response__init(m);
    m->file_descriptor_proto = arena_alloc(&q->a, FILES_MAX * sizeof *m->file_descriptor_proto);
    if (!m->file_descriptor_proto)
        return -ENOMEM;
    add_file(m, file);
    for (size_t i = 0; i < m->n_file_descriptor_proto; i++)
        add_imports(m, i);
    out->message_response_case = MSG(RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE);
    out->file_descriptor_response = m;
    return 0;
}

static int answer(struct ctl_req *q, request *in, response *out)
{
    Grpc__Reflection__V1__ErrorResponse *e;
    int r;

    switch (in->message_request_case) {
    case MSG(REQUEST__MESSAGE_REQUEST_LIST_SERVICES):
        r = list_services(q, out);
        break;
    case MSG(REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME):
        r = files(q, in->file_by_filename, NULL, out);
        break;
    case MSG(REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL):
        r = files(q, NULL, in->file_containing_symbol, out);
        break;
    case MSG(REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION):
    case MSG(REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE):
        r = -ENOENT; /* proto3: there are no extensions */
        break;
    default:
        r = -EOPNOTSUPP;
    }
    if (r != -ENOENT && r != -EOPNOTSUPP)
        return r;
    e = arena_alloc(&q->a, sizeof *e);
    if (!e)
        return -ENOMEM;
    grpc__reflection__v1__error_response__init(e);
    e->error_code = (int32_t)errs_code(r);
    e->error_message = (char *)(r == -ENOENT ? "not found" : "not supported");
    out->message_response_case = MSG(RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE);
    out->error_response = e;
    return 0;
}

void ctl_reflect(struct rpc_call *c, const void *msg, size_t len, void *user)
{
    struct ctl_req q;
    request *in;
    response out = MSG(RESPONSE__INIT);
    uint8_t *packed = NULL;
    int r;

    ctl_req_init(&q, user, c);
    in = grpc__reflection__v1__server_reflection_request__unpack(&q.a.pb, len, msg);
    r = in ? answer(&q, in, &out) : -EBADMSG;
    if (!r) {
        out.valid_host = in->host;
        out.original_request = in;
        packed = malloc(grpc__reflection__v1__server_reflection_response__get_packed_size(&out));
    }
    if (packed)
        rpc_send(c, packed, grpc__reflection__v1__server_reflection_response__pack(&out, packed));
    else
        rpc_finish(c, r ? r : -ENOMEM, NULL);
    free(packed);
    ctl_req_done(&q);
}
