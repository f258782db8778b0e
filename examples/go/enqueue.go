// Enqueues a job from Go, with the standard library alone: `go run enqueue.go TASK [ARGUMENT]...`
//
// The script that it calls is in a file that bide has printed once. Keep the file in your repository:
//
//	bide script enqueue --json -q mail > enqueue.json
//
// With a client library, `call` is its `client.Do(ctx, ...)`.
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Script is the content of enqueue.json.
type Script struct {
	Sha, Text string
	Keys      []string
}

// Body is the job; more fields (timeout, retry, meta, ...) are optional.
type Body struct {
	Task string   `json:"task"`
	Args []string `json:"args"`
}

// Enqueued is the result: if a job with this id existed, it is unchanged, and Due is nil.
type Enqueued struct {
	ID    string     `json:"id"`
	IsNew bool       `json:"isNew"`
	Due   *time.Time `json:"due"`
}

type caller func(words ...string) (any, error)

func (s Script) enqueue(call caller, id, when string, priority int, body Body) (Enqueued, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return Enqueued{}, err
	}
	words := append([]string{"EVALSHA", s.Sha, strconv.Itoa(len(s.Keys))}, s.Keys...)
	words = append(words, id, when, strconv.Itoa(priority), string(text))
	reply, err := call(words...)
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		words[0], words[1] = "EVAL", s.Text // after this, the server knows the script
		reply, err = call(words...)
	}
	if err != nil {
		return Enqueued{}, err
	}
	list, _ := reply.([]any)
	if len(list) != 3 || list[0] != "ok" {
		return Enqueued{}, fmt.Errorf("unexpected reply %v", reply)
	}
	if us, _ := list[2].(int64); us > 0 {
		due := time.UnixMicro(us)
		return Enqueued{id, true, &due}, nil
	}
	return Enqueued{ID: id}, nil
}

// newID returns a text that no other job has. Jobs due at the same microsecond run in id order.
func newID() string {
	random := make([]byte, 8)
	if _, err := rand.Read(random); err != nil {
		log.Fatal(err)
	}
	return fmt.Sprintf("%s-%x", strconv.FormatInt(time.Now().UnixMilli(), 36), random)
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: go run enqueue.go TASK [ARGUMENT]...")
	}
	var script Script
	file, err := os.ReadFile("enqueue.json")
	if err == nil {
		err = json.Unmarshal(file, &script)
	}
	if err != nil {
		log.Fatal(err)
	}
	call, err := open(os.Getenv("BIDE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	body := Body{os.Args[1], os.Args[2:]}
	result, err := script.enqueue(call, newID(), "+0", 5, body)
	if err != nil {
		log.Fatal(err)
	}
	printed, _ := json.Marshal(result)
	fmt.Println(string(printed))
}

// The rest is a client for one call at a time: RESP over a socket, without AUTH and SELECT.
func open(address string) (caller, error) {
	server, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	network, at := "tcp", server.Host
	switch {
	case server.Scheme == "unix":
		network, at = "unix", server.Path
	case at == "":
		at = "127.0.0.1:6379"
	case server.Port() == "":
		at += ":6379"
	}
	socket, err := net.DialTimeout(network, at, 10*time.Second)
	if err != nil {
		return nil, err
	}
	reader, writer := bufio.NewReader(socket), bufio.NewWriter(socket)
	return func(words ...string) (any, error) {
		socket.SetDeadline(time.Now().Add(10 * time.Second))
		fmt.Fprintf(writer, "*%d\r\n", len(words))
		for _, word := range words {
			fmt.Fprintf(writer, "$%d\r\n%s\r\n", len(word), word)
		}
		if err := writer.Flush(); err != nil {
			return nil, err
		}
		return read(reader)
	}, nil
}

func read(reader *bufio.Reader) (any, error) {
	line, err := reader.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	number, _ := strconv.ParseInt(line[1:], 10, 64)
	switch line[0] {
	case '-':
		return nil, errors.New(line[1:])
	case ':':
		return number, nil
	case '$':
		if number < 0 {
			return nil, nil
		}
		text := make([]byte, number+2)
		_, err := io.ReadFull(reader, text)
		return string(text[:number]), err
	case '*':
		list := make([]any, number)
		for i := range list {
			if list[i], err = read(reader); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return line[1:], nil
}
