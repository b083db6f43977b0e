/* Receives frames and reports events. */

#define _GNU_SOURCE
#include "frames.h"

#include <errno.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>

/* Bytes of a payload that must arrive before the thread wakes up. Rate-limited links deliver only a few segments at
 * a time. */
#define WAKE_BYTES (128 << 10)
/* Maximum bytes of a payload that may wait in the system's buffers until the whole payload has arrived. */
#define MAX_BUFFERED (256 << 10)

static bool is_ours(const struct header *header)
{
    return memcmp(header->magic, MAGIC, sizeof header->magic) == 0;
}

static bool has_chunk(const struct header *header)
{
    return header->kind >= DATA && header->kind <= RESULT;
}

bool is_short(const struct header *header)
{
    bool is_known = header->kind > 0 && header->kind <= LAST_KIND;
    return is_ours(header) && is_known && !has_chunk(header) && header->nbytes <= TEXT;
}

uint32_t width_of(int dtype)
{
    return dtype == FLOAT64 || dtype == INT64 ? 8 : dtype == FLOAT16 || dtype == BFLOAT16 ? 2 : 4;
}

bool is_chunk(const struct header *header)
{
    uint64_t first = (uint64_t)header->chunk * header->step;
    if (!is_ours(header) || !has_chunk(header))
        return false;
    if (header->dtype < FLOAT32 || header->dtype > INT64 || header->reduction > 1)
        return false;
    if (!header->step || first >= header->total || header->nbytes > CHUNK)
        return false;
    uint64_t left = header->total - first, count = left < header->step ? left : header->step;
    return header->nbytes == count * width_of(header->dtype);
}

double now(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

struct event *report_add(struct report *report, enum event_kind kind, uint32_t lane, uint64_t position)
{
    struct event *event = &report->events[report->filled++];
    *event = (struct event){.kind = kind, .lane = (int32_t)lane, .position = position};
    event->offset = (uint32_t)report->text_used;
    return event;
}

void report_text(struct report *report, struct event *event, const void *bytes, size_t count)
{
    memcpy(report->text + report->text_used, bytes, count);
    report->text_used += count;
    event->size += (uint32_t)count;
}

bool report_is_full(const struct report *report)
{
    return report->capacity - report->filled < 2 || report->text_room - report->text_used < 2 * (HEADER + TEXT);
}

static void wake_at(struct incoming *in, int handle, size_t bytes)
{
    int wakes_at = (int)bytes;
    if (in->wakes_at != bytes) {
        in->wakes_at = (uint32_t)bytes;
        setsockopt(handle, SOL_SOCKET, SO_RCVLOWAT, &wakes_at, sizeof wakes_at);
    }
}

/* Requests a wake-up no later than the rest of the current header or payload, because the next frame may arrive much
 * later. */
static void wait_for_more(struct incoming *in, int handle)
{
    size_t lacks = in->got < HEADER ? HEADER - in->got : HEADER + in->header.nbytes - in->got;
    wake_at(in, handle, lacks < WAKE_BYTES ? lacks : WAKE_BYTES);
}

bool incoming_is_whole(struct incoming *in, int handle)
{
    int there = 0;
    if (ioctl(handle, FIONREAD, &there) == 0 && there >= 0 && (uint32_t)there >= in->header.nbytes)
        return true;
    if (in->header.nbytes <= MAX_BUFFERED)
        wake_at(in, handle, in->header.nbytes);
    return false;
}

ssize_t incoming_read(struct incoming *in, int handle, frame_step begin, frame_step end, void *whose)
{
    struct header next;
    struct iovec parts[2];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 1};
    bool in_payload = in->got >= HEADER;
    size_t wanted = HEADER - in->got;
    if (in_payload) {
        size_t have = in->got - HEADER;
        wanted = in->header.nbytes - have;
        parts[0] = (struct iovec){in->payload + have, wanted};
        parts[1] = (struct iovec){&next, HEADER};
        message.msg_iovlen = in->is_single ? 1 : 2;
    } else {
        parts[0] = (struct iovec){(uint8_t *)&in->header + in->got, wanted};
    }
    ssize_t done;
    do
        done = recvmsg(handle, &message, MSG_DONTWAIT);
    while (done < 0 && errno == EINTR);
    if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        wait_for_more(in, handle);
        return -EAGAIN;
    }
    if (done <= 0)
        return done < 0 ? -errno : 0;
    in->got += (size_t)done;
    if ((size_t)done < wanted)
        return done;
    if (in_payload) {
        if (!end(whose))
            return done;
        in->got = (size_t)done - wanted;
        in->header = next;
    }
    /* A frame without a payload ends with its header. One read contains at most one such header. */
    if (in->got == HEADER && begin(whose) && !in->header.nbytes && end(whose))
        in->got = 0;
    return done;
}
