/* Sends to and receives from the members of a group. */

#define _GNU_SOURCE
#include "reducing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Limit of a worker's bytes without a result, and of results that the worker has not accepted. One chunk may exceed
 * it. */
#define WINDOW (16u << 20)
/* Maximum number of reads from one connection before other connections have their turn. */
#define READS_PER_TURN 8
/* Maximum number of frames in one system call. */
#define FRAMES_PER_SEND 8

void become_due(struct reducer *r, struct member *member)
{
    if (member->is_due || member->handle < 0)
        return;
    member->is_due = true;
    member->next = NULL;
    *r->due_end = member;
    r->due_end = &member->next;
}

struct member *take_due(struct reducer *r)
{
    struct member *member = r->due;
    r->due = member->next;
    if (!r->due)
        r->due_end = &r->due;
    member->is_due = false;
    return member;
}

/* ---- sending ---- */

static uint32_t size_of(const struct out *out)
{
    return (uint32_t)HEADER + out->header.nbytes;
}

static struct out *out_at(const struct member *member, uint32_t index)
{
    return &member->out[(member->out_first + index) & (member->out_room - 1)];
}

bool member_send(struct reducer *r, struct member *member, const struct header *header, struct block *payload)
{
    if (member->out_count == member->out_room) {
        uint32_t room = member->out_room ? 2 * member->out_room : 16;
        struct out *grown = malloc(room * sizeof *grown);
        if (!grown) {
            block_drop(&r->blocks, payload);
            return false;
        }
        for (uint32_t i = 0; i < member->out_count; i++)
            grown[i] = *out_at(member, i);
        free(member->out);
        member->out = grown;
        member->out_room = room;
        member->out_first = 0;
    }
    *out_at(member, member->out_count++) = (struct out){*header, payload};
    member->unsent += HEADER + header->nbytes;
    become_due(r, member);
    return true;
}

static void dequeue(struct reducer *r, struct member *member)
{
    block_drop(&r->blocks, out_at(member, 0)->payload);
    member->out_first = (member->out_first + 1) & (member->out_room - 1);
    member->out_count--;
}

/* Describes the unsent rest of a frame, from `offset` on, as at most two parts: header and payload. */
static int pieces(const struct out *out, size_t offset, struct iovec *parts)
{
    int count = 0;
    if (offset < HEADER) {
        parts[count++] = (struct iovec){(uint8_t *)&out->header + offset, HEADER - offset};
        offset = HEADER;
    }
    if (offset < size_of(out))
        parts[count++] = (struct iovec){out->payload->data + (offset - HEADER), size_of(out) - offset};
    return count;
}

static void flush(struct reducer *r, struct member *member)
{
    while (member->out_count && member->writable) {
        struct iovec parts[2 * FRAMES_PER_SEND];
        struct msghdr message = {.msg_iov = parts};
        for (uint32_t i = 0; i < member->out_count && i < FRAMES_PER_SEND; i++)
            message.msg_iovlen += (size_t)pieces(out_at(member, i), i ? 0 : member->offset, parts + message.msg_iovlen);
        ssize_t done = sendmsg(member->handle, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0) {
            member->writable = false;
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                member->error = errno;
            return;
        }
        r->moved += (uint64_t)done;
        member->unsent -= (uint64_t)done;
        member->offset += (size_t)done;
        while (member->out_count && member->offset >= size_of(out_at(member, 0))) {
            member->offset -= size_of(out_at(member, 0));
            dequeue(r, member);
        }
    }
}

/* ---- receiving ---- */

/* The context of a call of incoming_read. */
struct reading {
    struct reducer *reducer;
    struct member *member;
};

/* Reports an event of a member. Reading stops until reducer_resume. */
static struct event *report_event(struct reducer *r, struct member *member, enum event_kind kind, uint64_t error)
{
    member->is_stopped = true;
    return report_add(&r->report, kind, member->slot, error);
}

static bool report_violation(struct reducer *r, struct member *member)
{
    report_event(r, member, EVENT_VIOLATION, 0);
    return false;
}

static bool report_mismatch(struct reducer *r, struct member *member)
{
    report_text(&r->report, report_event(r, member, EVENT_MISMATCH, 0), &member->incoming.header, HEADER);
    return false;
}

static void lose(struct reducer *r, struct member *member, int error)
{
    report_event(r, member, EVENT_LOST, (uint64_t)error);
    poller_remove(&r->poller, member->handle);
    member->handle = -1;
}

static bool begin(void *whose)
{
    struct reading *reading = whose;
    struct member *member = reading->member;
    const struct header *in = &member->incoming.header;
    if (in->kind != DATA && in->kind != FINAL) {
        if (!is_short(in))
            return report_violation(reading->reducer, member);
        member->incoming.payload = member->text;
        return true;
    }
    if (!member->group || !is_chunk(in) || in->rank != member->rank)
        return report_violation(reading->reducer, member);
    if (in->reduction && (in->dtype == INT32 || in->dtype == INT64))
        return report_mismatch(reading->reducer, member);
    member->payload = block_take(&reading->reducer->blocks, in->nbytes);
    if (!member->payload) {
        member->error = ENOMEM;
        return false;
    }
    member->incoming.payload = member->payload->data;
    return true;
}

struct row *row_at(const struct group *group, uint64_t position)
{
    return &group->rows[position & (group->room - 1)];
}

/* Makes space for a row at `position`. Returns false if no memory is available. */
static bool make_room(struct group *group, uint64_t position)
{
    size_t room = group->room;
    while (position - group->head >= room)
        room *= 2;
    if (room == group->room)
        return true;
    struct row *grown = calloc(room, sizeof *grown);
    if (!grown)
        return false;
    for (uint64_t p = group->head; p < group->head + group->room; p++)
        grown[p & (room - 1)] = *row_at(group, p);
    free(group->rows);
    group->rows = grown;
    group->room = room;
    return true;
}

/* Finishes the oldest row, for which all ranks have sent their chunks. */
static void finish(struct reducer *r, struct group *group, const struct header *last)
{
    struct row *row = row_at(group, group->head);
    struct block *result = row_result(row, group->world);
    struct header header = *last;
    header.kind = RESULT;
    header.rank = 0;
    header.acknowledged = UINT64_MAX;
    for (uint32_t rank = 0; rank < group->world; rank++)
        if (group->members[rank] && group->members[rank]->acknowledged < header.acknowledged)
            header.acknowledged = group->members[rank]->acknowledged;
    for (uint32_t rank = 0; rank < group->world; rank++) {
        struct member *member = group->members[rank];
        if (!member)
            continue;
        member->unanswered -= header.nbytes;
        if (row->takes[rank]) {
            result->uses++;
            if (!member_send(r, member, &header, result))
                member->error = ENOMEM;
        }
        become_due(r, member);
    }
    block_drop(&r->blocks, result);
    row_end(&r->blocks, row, group->world);
    group->head++;
    group->begun--;
    if ((int64_t)header.operation != group->operation) {
        group->operation = (int64_t)header.operation;
        group->ordinal = header.ordinal;
    }
}

static bool add(struct reducer *r, struct member *member)
{
    struct group *group = member->group;
    const struct header *in = &member->incoming.header;
    uint64_t position = member->position;
    if (!make_room(group, position)) {
        member->error = ENOMEM;
        return false;
    }
    struct row *row = row_at(group, position);
    uint32_t present = group->world - group->lacking;
    /* The missing chunk belongs to a rank that left before the group started. */
    bool is_in_vain = group->lacking && row->arrived + 1 == present && !row->final && in->kind != FINAL;
    if (position >= group->parted || is_in_vain || (row->arrived && !row_agrees(row, in)))
        return report_mismatch(r, member);
    if (!row->arrived) {
        if (!row_begin(row, group->world, in, now())) {
            member->error = ENOMEM;
            return false;
        }
        group->begun++;
    }
    struct block *payload = member->payload;
    member->payload = NULL;
    member->position++;
    member->ordinal = in->ordinal;
    member->unanswered += in->nbytes;
    if (in->acknowledged > member->acknowledged)
        member->acknowledged = in->acknowledged;
    row->takes[member->rank] = in->kind == DATA && member->received <= position;
    if (!row_add(&r->blocks, row, in, payload, group->world)) {
        member->error = ENOMEM;
        return false;
    }
    if (row->arrived == present)
        finish(r, group, in);
    return true;
}

static bool end(void *whose)
{
    struct reading *reading = whose;
    struct reducer *r = reading->reducer;
    struct member *member = reading->member;
    const struct header *in = &member->incoming.header;
    if (member->payload)
        return add(r, member);
    struct event *event = report_event(r, member, EVENT_MESSAGE, 0);
    report_text(&r->report, event, in, HEADER);
    report_text(&r->report, event, member->text, in->nbytes);
    return false;
}

static bool may_read(const struct reducer *r, const struct member *member)
{
    bool has_room = member->is_leaving || (member->unanswered < WINDOW && member->unsent < WINDOW);
    return member->handle >= 0 && member->readable && !member->is_stopped && !member->error && has_room &&
           !report_is_full(&r->report);
}

/* Reads once and discards the data. Returns the same values as incoming_read. */
static ssize_t discard(const struct member *member)
{
    static uint8_t nobodys[64 << 10];
    ssize_t done = recv(member->handle, nobodys, sizeof nobodys, MSG_DONTWAIT);
    if (done < 0)
        return errno == EINTR || errno == EWOULDBLOCK ? -EAGAIN : -errno;
    return done;
}

void member_serve(struct reducer *r, struct member *member)
{
    struct reading reading = {r, member};
    if (member->handle < 0)
        return;
    flush(r, member);
    if (member->is_leaving && !member->out_count)
        shutdown(member->handle, SHUT_WR);
    for (int turn = 0; turn < READS_PER_TURN && may_read(r, member); turn++) {
        ssize_t done = member->is_leaving ? discard(member)
                                          : incoming_read(&member->incoming, member->handle, begin, end, &reading);
        if (done > 0) {
            r->moved += (uint64_t)done;
        } else if (done == -EAGAIN) {
            member->readable = false;
        } else {
            lose(r, member, (int)-done);
        }
    }
    if (member->error && !member->is_stopped && !report_is_full(&r->report))
        lose(r, member, member->error);
    if (may_read(r, member) || (member->error && !member->is_stopped))
        become_due(r, member);
}

static void group_end(struct reducer *r, struct group *group)
{
    for (size_t i = 0; i < group->room; i++) {
        struct row *row = &group->rows[i];
        row_end(&r->blocks, row, group->world);
        free(row->early);
        free(row->order);
        free(row->takes);
    }
    free(group->rows);
    free(group->members);
    free(group);
}

void member_part(struct reducer *r, struct member *member)
{
    struct group *group = member->group;
    if (group) {
        group->members[member->rank] = NULL;
        if (!--group->present)
            group_end(r, group);
    }
    member->group = NULL;
    block_drop(&r->blocks, member->payload);
    member->payload = NULL;
    member->unanswered = 0;
}

void member_end(struct reducer *r, struct member *member)
{
    struct member **link = &r->due;
    while (*link && *link != member)
        link = &(*link)->next;
    if (*link) {
        *link = member->next;
        if (!*link)
            r->due_end = link;
    }
    while (member->out_count)
        dequeue(r, member);
    free(member->out);
    free(member);
}
