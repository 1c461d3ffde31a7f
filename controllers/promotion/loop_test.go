package promotion_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keelson-io/keelson/controllers/promotion"
	"github.com/keelson-io/keelson/controllers/rollout"
	"github.com/keelson-io/keelson/registry"
)

// controller is a process that promotes, and reads git when it is told to.
type controller struct {
	*promotion.Loop
	*scene
	mu     sync.Mutex
	log    bytes.Buffer
	stands map[string]rollout.Progress
	told   []error
	news   chan struct{}
}

// Write takes the log.
func (c *controller) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.Write(p)
}

func (c *controller) logged() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.log.String()
}

func (c *controller) stand(_ *registry.Fleet, component string) (rollout.Progress, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	is, known := c.stands[component]
	if !known {
		return is, rollout.ErrUnknown
	}
	return is, nil
}

// comes says how far web has come.
func (c *controller) comes(is rollout.Progress) {
	c.mu.Lock()
	c.stands["web"] = is
	c.mu.Unlock()
	c.Look()
}

func (s *scene) start() *controller {
	s.t.Helper()
	c := &controller{scene: s, stands: map[string]rollout.Progress{}, news: make(chan struct{}, 100)}
	s.promoter.Now = time.Now // pushes lie apart
	var err error
	c.Loop, err = promotion.NewLoop(promotion.LoopOptions{
		Promoter: s.promoter, Gap: time.Nanosecond, Log: slog.New(slog.NewTextHandler(c, nil)), Registry: prometheus.NewRegistry(),
		Pushed: func() { c.news <- struct{}{} },
		Told: func(err error) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.told = append(c.told, err)
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(s.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx, c.stand) })
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-c.news:
				if err := c.repo.Git().Fetch(ctx); err == nil {
					if f, err := c.repo.Load(ctx, ""); err == nil {
						c.Fleet(f)
					}
				}
			}
		}
	})
	s.t.Cleanup(func() { stop(); wg.Wait() })
	c.Fleet(s.fleet)
	return c
}

// until waits for what a process is about to do.
func (c *controller) until(what string, is func() bool) {
	c.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range 1500 {
		if is() {
			return
		}
		select {
		case <-c.t.Context().Done():
		case <-tick.C:
		}
	}
	c.t.Fatalf("not seen: %s\n%s", what, c.logged())
}

// subject is that of the branch's last commit.
func (c *controller) subject() string {
	c.t.Helper()
	return c.git("--git-dir", "../fleet.git", "log", "-1", "--format=%s", "main")
}

// A process promotes as soon as it knows enough, on top of whatever others push, and once.
func TestLoop(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	c := s.start()
	c.comes(rollout.Progress{})
	c.until("testing has the newest tag", func() bool { return c.subject() == "promote web to v1.1.0 in testing" })
	s.pull()
	s.write("README.md", "x")
	s.push("kim is at work, too") // of which the process knows nothing
	c.comes(passed("testing"))
	c.until("production follows", func() bool { return c.subject() == "promote web to v1.1.0 in production" })
	c.comes(passed("production"))
	s.pull()
	s.git("tag", "web/v1.2.0")
	s.git("push", "-q", "--tags", "origin")
	c.news <- struct{}{} // a webhook
	c.until("testing has the next tag", func() bool { return c.subject() == "promote web to v1.2.0 in testing" })
	s.pull()
	if got := s.git("log", "--format=%s", "--reverse"); got != "first\npromote web to v1.1.0 in testing\nkim is at work, too\npromote web to v1.1.0 in production\npromote web to v1.2.0 in testing" {
		t.Errorf("the commits are\n%s", got)
	}
	if len(c.told) > 0 {
		t.Errorf("it was told of %v", c.told)
	}
}

// Without the right to push it says so once, shows no login, and goes on when it has it.
func TestLoopNoRight(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	s.write("../logins", strings.TrimSuffix(s.url, "/fleet.git")+": {username: reader, password: S3cret-of-the-writer}\n")
	c := s.start()
	c.comes(rollout.Progress{})
	failed := func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.told) == 1 }
	c.until("it fails", failed)
	c.Look()
	s.write("../logins", strings.TrimSuffix(s.url, "/fleet.git")+": {username: writer, password: S3cret-of-the-writer}\n")
	c.Look()
	c.until("it works", func() bool { return c.subject() == "promote web to v1.1.0 in testing" })
	c.until("it is told", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return len(c.told) == 2 })
	if c.told[0] == nil || c.told[1] != nil || strings.Contains(c.logged()+c.told[0].Error(), "S3cret") {
		t.Errorf("told %v\n%s", c.told, c.logged())
	}
}
