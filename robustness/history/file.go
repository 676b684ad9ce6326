package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Now is the machine's monotonic clock, in nanoseconds.
func Now() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// Writer appends to a history file, each record with one system call,
// so that a kill loses no record. It is safe for concurrent use.
type Writer struct {
	mu   sync.Mutex
	file *os.File
}

// Append opens a history file, and creates it if it is missing.
func Append(path string) (*Writer, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer{file: file}, nil
}

// Put records the call. It panics if the history can't be written, because an incomplete history is useless.
func (w *Writer) Put(op Op) {
	line, err := json.Marshal(op)
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		_, err = w.file.Write(append(line, '\n'))
	}
	if err != nil {
		panic(fmt.Errorf("history: %w", err))
	}
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// Reader reads a growing file, from its last position.
type Reader struct {
	Path   string
	offset int64
}

// Next returns the new records. An incomplete last line is left for the next call.
func (r *Reader) Next() ([]Op, error) {
	file, err := os.Open(r.Path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(r.offset, io.SeekStart); err != nil {
		return nil, err
	}
	var ops []Op
	in := bufio.NewReaderSize(file, 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return ops, nil
		}
		if err != nil {
			return nil, err
		}
		r.offset += int64(len(line))
		var op Op
		if err := json.Unmarshal(bytes.TrimSpace(line), &op); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Path, err)
		}
		ops = append(ops, op)
	}
}

// Last keeps the last record of each ID, in the order of their first records.
func Last(ops []Op) []Op {
	at := make(map[string]int, len(ops))
	var last []Op
	for _, op := range ops {
		if i, ok := at[op.ID]; ok {
			last[i] = op
			continue
		}
		at[op.ID] = len(last)
		last = append(last, op)
	}
	return last
}
