package renderer

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/keelson-io/keelson/registry"
	"github.com/keelson-io/keelson/renderer/sandbox"
)

// Frames are the messages that make a render.
func Frames(t testing.TB, r Request) [][]byte {
	t.Helper()
	j, failed := newJob(r, defaultMaxOutput)
	if failed != nil {
		t.Fatal(failed)
	}
	var out [][]byte
	for _, m := range []any{sandbox.Limits{Memory: 1}, welcome{}, j, j.answer(func() sandbox.Usage { return sandbox.Usage{} }), answer{Failed: &failure{Message: "no"}}} {
		var b bytes.Buffer
		if err := writeFrame(&b, m); err != nil {
			t.Fatal(err)
		}
		out = append(out, b.Bytes())
	}
	return out
}

// ReadAnswer reads what a worker may have sent.
func ReadAnswer(data []byte) {
	var a answer
	_ = readFrame(bytes.NewReader(data), maxFrame(defaultMaxOutput), &a)
}

// LoadChart reads chart files, and executes nothing.
func LoadChart(files []registry.File) error {
	j := &job{Component: "demo", Version: "v1.0.0", Chart: files, KubeVersion: defaultKubeVersion}
	if _, err := loadChart(j); err != nil {
		return err
	}
	return nil
}

// Workers are the process ids of the idle workers.
func (p *Pool) Workers() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []int
	for _, w := range p.idle {
		out = append(out, w.cmd.Process.Pid)
	}
	return out
}

// LastWords greets a worker of a program, and returns what it prints before it ends.
func LastWords(ctx context.Context, program string, args ...string) (string, error) {
	w, err := startWorker(ctx, program, args, sandbox.Isolations()[0])
	if err != nil {
		return "", err
	}
	defer w.end()
	_ = w.greet(ctx, sandbox.Limits{Memory: 256 << 20, CPU: time.Minute}, startTimeout) // it ends instead of an answer
	err = w.cmd.Wait()
	return w.lastWords.String(), err
}
