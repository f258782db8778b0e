/* What a server does for bide's scripts when the client costs next to nothing.
 *
 *   bare SOCKET ping COUNT
 *   bare SOCKET enqueue COUNT PER_CALL CALLS_PER_TRIP BODY SHA NKEYS KEY...
 *   bare SOCKET drain COUNT PER_CALL SHA NKEYS KEY... SHA NKEYS KEY...     (of claim, of settle)
 *
 * One connection, one round trip at a time, as bide has it. `drain` sends the settles of what the
 * last claim brought together with the next claim, as a worker does. Prints the seconds that it
 * took. The scripts must have been loaded. It reads of RESP what these replies are made of.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what) {
    fprintf(stderr, "bare: %s\n", what);
    exit(1);
}

/* ---------------------------------------------------------------- sending */

static int connection;
static char *out;
static size_t out_used, out_room;

static void add(const char *bytes, size_t length) {
    if (out_used + length > out_room) {
        out_room = 2 * (out_used + length);
        out = realloc(out, out_room);
        if (!out) fail("no memory");
    }
    memcpy(out + out_used, bytes, length);
    out_used += length;
}

static void add_head(char type, size_t number) {
    char text[32];
    add(text, (size_t)snprintf(text, sizeof text, "%c%zu\r\n", type, number));
}

static void add_bytes(const char *bytes, size_t length) {
    add_head('$', length);
    add(bytes, length);
    add("\r\n", 2);
}

static void add_text(const char *text) { add_bytes(text, strlen(text)); }

static void add_number(const char *format, long long number) {
    char text[32];
    add_bytes(text, (size_t)snprintf(text, sizeof text, format, number));
}

/* The beginning of an EVALSHA: `script` is SHA NKEYS KEY..., as on the command line. */
static void add_call(char **script, size_t arguments) {
    size_t keys = strtoul(script[1], NULL, 10);
    add_head('*', 3 + keys + arguments);
    add_text("EVALSHA");
    for (size_t i = 0; i < 2 + keys; i++) add_text(script[i]);
}

static void send_all(void) {
    for (size_t sent = 0; sent < out_used;) {
        ssize_t count = write(connection, out + sent, out_used - sent);
        if (count < 0 && errno != EINTR) fail("cannot write");
        if (count > 0) sent += (size_t)count;
    }
    out_used = 0;
}

/* -------------------------------------------------------------- receiving */

static char in[1 << 16];
static size_t in_at, in_end;

/* What has come within 100 us, without sleeping: `bide.client.blocking` watches for short replies, too. */
static ssize_t watch(void) {
    struct timespec begun, now;
    ssize_t count;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        count = recv(connection, in, sizeof in, MSG_DONTWAIT);
        if (count >= 0 || errno != EAGAIN) return count;
        sched_yield();
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < 100000);
    return -1;
}

static char next_byte(void) {
    if (in_at == in_end) {
        ssize_t count = watch();
        while (count < 0 && (errno == EINTR || errno == EAGAIN)) count = read(connection, in, sizeof in);
        if (count <= 0) fail("the connection broke");
        in_at = 0;
        in_end = (size_t)count;
    }
    return in[in_at++];
}

static void read_line(char *line, size_t room) {
    size_t used = 0;
    for (char byte; (byte = next_byte()) != '\r';)
        if (used + 1 < room) line[used++] = byte;
    line[used] = 0;
    next_byte();
}

/* Reads an item; its number, or how many elements or bytes it has. The bytes go into `text`. */
static long long read_item(char expected, char *text, size_t room) {
    char line[256];
    char type = next_byte();
    read_line(line, sizeof line);
    if (type == '-') fail(line);
    if (expected && type != expected) fail("a reply is of another form than expected");
    long long number = strtoll(line, NULL, 10);
    if (type == '$' && number >= 0) {
        for (long long i = 0; i < number; i++) {
            char byte = next_byte();
            if ((size_t)i + 1 < room) text[i] = byte;
        }
        if (room) text[(size_t)number < room ? (size_t)number : room - 1] = 0;
        next_byte();
        next_byte();
    }
    return number;
}

static void skip_array(void) {
    for (long long left = read_item('*', NULL, 0); left > 0; left--) read_item(0, NULL, 0);
}

/* ------------------------------------------------------------------- work */

static void ping(long count) {
    while (count-- > 0) {
        add("*1\r\n$4\r\nPING\r\n", 14);
        send_all();
        read_item('+', NULL, 0);
    }
}

static void enqueue(long count, long per_call, long calls, const char *body, char **script) {
    for (long done = 0; done < count;) {
        long sent = 0;
        for (; sent < calls && done < count; sent++) {
            add_call(script, 4 * (size_t)per_call);
            for (long i = 0; i < per_call; i++, done++) {
                add_number("%020lld", done);
                add_text("+3600000000");
                add_text("5");
                add_text(body);
            }
        }
        send_all();
        while (sent-- > 0) skip_array();
    }
}

enum { HEAD = 11 }; /* items of a claim's reply before its jobs */

static void drain(long count, long per_call, char **claim, char **settle) {
    char (*ids)[129] = calloc((size_t)per_call, sizeof *ids);
    long long *tokens = calloc((size_t)per_call, sizeof *tokens), held = 0, seq = 0;
    if (!ids || !tokens) fail("no memory");
    for (long done = 0; done < count; done += held) {
        if (held) add_call(settle, 5 * (size_t)held);
        for (long i = 0; i < held; i++) {
            add_text(ids[i]);
            add_number("%016lld", tokens[i]);
            add_text("complete");
            add_text("");
            add_text("");
        }
        add_call(claim, 9);
        add_text("bare");
        add_number("%lld", ++seq);
        add_number("%lld", per_call);
        add_text("60000000");
        add_text("0");
        add_text("2");
        add_text("");
        add_text("0");
        add_text("0");
        send_all();
        if (held) skip_array();
        held = (read_item('*', NULL, 0) - HEAD) / 5;
        for (int i = 0; i < HEAD; i++) read_item(0, NULL, 0);
        if (held <= 0 || held > per_call) fail("a claim brought no jobs, or too many");
        for (long i = 0; i < held; i++) {
            read_item('$', ids[i], sizeof ids[i]);
            read_item('$', NULL, 0);
            tokens[i] = read_item(':', NULL, 0);
            read_item(0, NULL, 0);
            read_item(0, NULL, 0);
        }
    }
}

int main(int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timespec began, ended;
    if (argc < 4) fail("too few arguments; the top of bare.c says which");
    if (strlen(argv[1]) >= sizeof address.sun_path) fail("the socket's path is too long");
    strcpy(address.sun_path, argv[1]);
    connection = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address))
        fail("cannot connect");
    long count = strtol(argv[3], NULL, 10);
    clock_gettime(CLOCK_MONOTONIC, &began);
    if (!strcmp(argv[2], "ping"))
        ping(count);
    else if (!strcmp(argv[2], "enqueue") && argc > 8)
        enqueue(count, atol(argv[4]), atol(argv[5]), argv[6], argv + 7);
    else if (!strcmp(argv[2], "drain") && argc > 8)
        drain(count, atol(argv[4]), argv + 5, argv + 7 + atol(argv[6]));
    else
        fail("it is to ping, enqueue or drain; the top of bare.c says with what");
    clock_gettime(CLOCK_MONOTONIC, &ended);
    printf("%.9f\n", (double)(ended.tv_sec - began.tv_sec) + 1e-9 * (double)(ended.tv_nsec - began.tv_nsec));
    return 0;
}
