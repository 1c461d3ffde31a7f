package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/keelson-io/keelson/lab/chaos/oracle"
	"github.com/keelson-io/keelson/lab/chaos/proxy"
)

// The versions of a component's planned changes. The last version crashes in one stage.
const (
	firstVersion = "v1.0.0"
	hasty        = "v1.1.0" // superseded during its rollout
	steadyOne    = "v1.2.0"
	doubtful     = "v1.3.0" // fails a check, and is reverted
	crashing     = "v1.4.0"
)

// plannedChangeTimeout is how long one planned change may take, with all its kills. The controller
// restarts after each kill, which takes many seconds on a busy machine.
const plannedChangeTimeout = 15 * time.Minute

// runRollouts kills the controller at every transition of rollouts.
func runRollouts(ctx context.Context, w *world) (r result, err error) {
	points := turningPoints()
	r = result{did: fmt.Sprintf("SIGKILL of keelson controller at %d transitions of rollouts, on 8 clusters", len(points)), must: len(points) * w.Rollouts}
	c, err := w.newRolloutFleet(ctx)
	defer func() { err = errors.Join(err, c.disband(context.WithoutCancel(ctx))) }()
	if err != nil {
		return r, err
	}
	for _, name := range c.clusters() {
		say("%s: %s is up", w.name, name)
	}
	all := &rolloutRun{rolloutFleet: c, result: &r, kills: map[string]map[int]when{}}
	calm, err := all.sail(ctx, -1, nil)
	if err != nil {
		return r, fmt.Errorf("the run without a kill: %w", err)
	}
	for seed := range w.Rollouts {
		started, killed := time.Now(), r.number
		ends, err := all.sail(ctx, seed, points)
		if err != nil {
			return r, fmt.Errorf("seed %d: %w", seed, err)
		}
		known := len(r.violations)
		for i, end := range ends {
			for _, line := range end.differences(calm[i]) {
				r.violate("seed %d, after %s: %s, and without a kill it is otherwise", seed, plannedChanges[i].name, line)
			}
		}
		if len(r.violations) == known {
			r.survived += r.number - killed
		}
		say("%s: seed %d of %d in %s, %d kills, %d violations until now", w.name, seed+1, w.Rollouts, time.Since(started).Round(100*time.Millisecond), r.number, len(r.violations))
	}
	all.table(points)
	return r, errors.Join(all.judge(), all.complete(points))
}

// rolloutRun is the state of a run of this scenario.
type rolloutRun struct {
	*rolloutFleet
	result *result
	cargos []*rolloutComponent
	kills  map[string]map[int]when // by name of the point, and seed
}

// plannedChange is a change in git and its expected end.
type plannedChange struct {
	name string
	// goes commits the change, and returns when the rollout has reached its end.
	goes func(ctx context.Context, p *componentRun) error
}

// componentRun is a component with its planned changes.
type componentRun struct {
	*rolloutComponent
	controller *restartingController
	// late is the stage during which a newer commit supersedes the rollout. doubt is the
	// stage and the name of the check that fails once.
	late  string
	doubt [2]string
}

// plannedChanges are the planned changes of a component. Together they make each transition of a rollout.
var plannedChanges = []plannedChange{ //nolint:gochecknoglobals // a table
	{"the first version", func(ctx context.Context, p *componentRun) error {
		if err := p.publish(ctx, firstVersion, nil); err != nil {
			return err
		}
		return p.until(ctx, "Complete", firstVersion)
	}},
	{"a version that is superseded", func(ctx context.Context, p *componentRun) error {
		p.asked.refuse(p.name, p.doubt[0], p.doubt[1], 1)
		if err := p.publish(ctx, hasty, nil); err != nil {
			return err
		}
		if err := p.reaches(ctx, p.late, hasty); err != nil {
			return err
		}
		if err := p.publish(ctx, steadyOne, nil); err != nil {
			return err
		}
		return p.until(ctx, "Complete", steadyOne)
	}},
	{"a version that fails a check, and is reverted", func(ctx context.Context, p *componentRun) error {
		p.asked.refuse(p.name, failsIn, "good", -1)
		defer p.asked.refuse(p.name, failsIn, "good", 0)
		if err := p.publish(ctx, doubtful, map[string]string{"pipelines/" + p.name + ".yaml": p.pipeline(3 * time.Second)}); err != nil {
			return err
		}
		if err := p.until(ctx, "Paused", ""); err != nil {
			return err
		}
		if err := p.push(ctx, p.repo, p.wanted(steadyOne)); err != nil {
			return err
		}
		return p.until(ctx, "Complete", steadyOne)
	}},
	{"a version that crashes in " + crashesIn, func(ctx context.Context, p *componentRun) error {
		if err := p.publish(ctx, crashing, nil); err != nil {
			return err
		}
		return p.until(ctx, "RolledBack", "")
	}},
}

// revisions matches the annotation with the revision that the Deployment controller counts.
var revisions = regexp.MustCompile(`"deployment.kubernetes.io/revision":"\d+",?`)

// sail takes one component through all planned changes, with a kill at each point, or without
// kills if points is nil. It returns the component's state after each planned change.
func (s *rolloutRun) sail(ctx context.Context, seed int, points []rolloutKillPoint) (ends []state, err error) {
	c := &rolloutComponent{rolloutFleet: s.rolloutFleet, name: fmt.Sprintf("cargo-%02d", seed+1)}
	s.cargos = append(s.cargos, c)
	s.ledger.OwnNamespace(c.name)
	k := &restartingController{rolloutFleet: s.rolloutFleet, component: c.name}
	for i, p := range points {
		k.pending = append(k.pending, &seededPoint{rolloutKillPoint: p, when: []when{before, after, late}[(i+seed)%3], left: 1 + s.rand.IntN(p.chances)})
	}
	all := slices.Clone(k.pending)
	if err := k.begin(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, k.end()) }()
	p := &componentRun{rolloutComponent: c, controller: k, late: []string{"canary", "smallflow"}[s.rand.IntN(2)]}
	doubts := [][2]string{{"testing", "ready"}, {"canary", "ready"}, {"canary", "good"}, {"smallflow", "good"}, {"production", "ready"}}
	p.doubt = doubts[s.rand.IntN(len(doubts))]
	for _, v := range plannedChanges {
		began := time.Now()
		if err := v.goes(ctx, p); err != nil {
			return ends, fmt.Errorf("%s: %s: %w", c.name, v.name, err)
		}
		if err := k.letThrough(ctx); err != nil {
			return ends, fmt.Errorf("%s: %s: %w", c.name, v.name, err)
		}
		end, err := p.rests(ctx)
		if err != nil {
			return ends, fmt.Errorf("%s: %s: %w", c.name, v.name, err)
		}
		ends = append(ends, end)
		say("%s: %s: %s, in %s", s.name, c.name, v.name, time.Since(began).Round(100*time.Millisecond))
		if points == nil {
			if err := p.show(ctx); err != nil {
				return ends, err
			}
		}
	}
	for _, t := range all {
		if t.hit {
			if s.kills[t.name] == nil {
				s.kills[t.name] = map[int]when{}
			}
			s.kills[t.name][seed] = t.when
			s.result.number++
		}
	}
	return ends, nil
}

// until waits until the rollout is in a phase, and unless version is empty, until every
// cluster has the version.
func (p *componentRun) until(ctx context.Context, phase, version string) error {
	return p.watch(ctx, func(ctx context.Context, r oracle.Rollout) error {
		if r.Phase != phase {
			return fmt.Errorf("the rollout to %s is %s in stage %q (%s), and not %s", r.To, r.Phase, r.Stage, r.Because, phase)
		}
		if version == "" {
			return nil
		}
		told, err := p.deliveryFields(ctx, p.name)
		if err != nil {
			return err
		}
		for _, name := range p.clusters() {
			if d := told[name]; d["appliedVersion"] != version || d["version"] != version || d["sync"] != "Synced" || d["health"] != "Healthy" {
				return fmt.Errorf("%s: %v, and not %s", name, d, version)
			}
		}
		return nil
	})
}

// reaches waits until a cluster of a stage is released to a version.
func (p *componentRun) reaches(ctx context.Context, stage, version string) error {
	return p.watch(ctx, func(_ context.Context, r oracle.Rollout) error {
		for _, c := range r.Clusters {
			if c.Stage == stage && c.Released != nil && r.To == version {
				return nil
			}
		}
		return fmt.Errorf("the rollout to %s is %s in stage %q (%s)", r.To, r.Phase, r.Stage, r.Because)
	})
}

// watch waits for a condition of the Rollout, and commits approvals meanwhile.
func (p *componentRun) watch(ctx context.Context, is func(context.Context, oracle.Rollout) error) error {
	return until(ctx, plannedChangeTimeout, func(ctx context.Context) error {
		if err := p.controller.failure(); err != nil {
			return err
		}
		r, err := p.rollout(ctx, p.name)
		if err != nil {
			return err
		}
		if err := p.approve(ctx, r); err != nil {
			return err
		}
		return is(ctx, r)
	})
}

// rests waits until a component has not changed for 2 s, and returns its state: the
// objects on each cluster, and the statuses on the hub, without the parts that may differ
// between two runs.
func (p *componentRun) rests(ctx context.Context) (last state, err error) {
	var since time.Time
	err = until(ctx, hungAfter, func(ctx context.Context) error {
		now, err := p.currentState(ctx)
		if err != nil {
			return err
		}
		if len(last) == 0 || len(now.differences(last)) > 0 {
			last, since = now, time.Now()
		}
		if rest := time.Since(since); rest < 2*time.Second {
			return fmt.Errorf("it stands so for %s", rest)
		}
		return nil
	})
	return last, err
}

func (p *componentRun) currentState(ctx context.Context) (state, error) {
	out := state{}
	for _, name := range p.clusters() {
		states, err := statesIn(ctx, p.clients[name], p.name)
		if err != nil {
			return nil, err
		}
		for key, content := range states[p.name] {
			// The Deployment controller counts the versions that a cluster has had. It is
			// random which clusters get a superseded version.
			out[name+": "+key] = revisions.ReplaceAllString(content, "")
		}
	}
	told, err := p.deliveryFields(ctx, p.name)
	if err != nil {
		return nil, err
	}
	r, err := p.rollout(ctx, p.name)
	if err != nil {
		return nil, err
	}
	for name, d := range told {
		has := r.ClusterNamed(name)
		out[name+": Delivery"] = fmt.Sprintf("%s %s, %s of %s; let go to it: %t, back: %t, at what git wants: %t",
			d["sync"], d["health"], d["appliedVersion"], d["version"], has.Released != nil, has.Back, has.Want == d["targetHash"])
	}
	var through []string
	for _, s := range r.Stages {
		if s.Passed != nil {
			through = append(through, s.Name)
		}
	}
	out["Rollout"] = fmt.Sprintf("%s to %s, back: %t, passed: %v", r.Phase, r.To, r.Back, through)
	return out, nil
}

// show prints the output of keelson rollout show.
func (p *componentRun) show(ctx context.Context) error {
	code, out, err := p.run(ctx, launch{name: "show", repo: p.repo, kubeconfig: p.straight}, "rollout", "show", p.name, "--context", target)
	if err != nil || code != 0 {
		return fmt.Errorf("keelson rollout show: exit code %d, %w", code, err)
	}
	fmt.Printf("\n$ keelson rollout show %s\n%s\n", p.name, out)
	return nil
}

// table prints a table of the kills, by point and seed.
func (s *rolloutRun) table(points []rolloutKillPoint) {
	w := tabwriter.NewWriter(os.Stdout, 2, 2, 2, ' ', 0)
	fmt.Fprint(w, "\nKILLED AT")
	for seed := range s.Rollouts {
		fmt.Fprintf(w, "\t%d", seed+1)
	}
	fmt.Fprintln(w, "\t")
	for _, p := range points {
		fmt.Fprint(w, p.name)
		for seed := range s.Rollouts {
			text := "-"
			if at, hit := s.kills[p.name][seed]; hit {
				text = at.String()
			}
			fmt.Fprint(w, "\t"+text)
		}
		fmt.Fprintln(w, "\t")
	}
	_ = w.Flush() // to stdout
}

// complete returns an error unless every point was hit on every seed.
func (s *rolloutRun) complete(points []rolloutKillPoint) error {
	var missed []string
	for _, p := range points {
		if n := len(s.kills[p.name]); n < s.Rollouts {
			missed = append(missed, fmt.Sprintf("%s (%d of %d)", p.name, n, s.Rollouts))
		}
	}
	if len(missed) > 0 {
		return fmt.Errorf("transitions that were not hit: %s", strings.Join(missed, "; "))
	}
	return nil
}

// judge lets the oracle judge the audit logs of the clusters, and the way of each component
// by all logs. world.judge judges the hub's own log.
func (s *rolloutRun) judge() error {
	hub, clusters, err := s.events()
	if err != nil {
		return err
	}
	for name, events := range clusters {
		v := oracle.Judge(events, s.ledger)
		for _, violation := range v.Violations {
			s.result.violate("%s: %s", name, violation)
		}
		if v.Writes == 0 {
			s.result.violate("%s: its audit log shows no write: nothing was tested", name)
		}
	}
	var total oracle.WayVerdict
	for _, c := range s.cargos {
		way := c.way()
		if err := saveWay(s.path("way-"+c.name+".json"), way); err != nil {
			return err
		}
		v := oracle.JudgeWay(way, hub, clusters)
		s.result.violations = append(s.result.violations, v.Violations...)
		if v.Empty() {
			s.result.violate("the logs show too little of %s: %s", c.name, v)
		}
		total.Statuses, total.Releases, total.Passes = total.Statuses+v.Statuses, total.Releases+v.Releases, total.Passes+v.Passes
		total.Arrivals, total.Violations = total.Arrivals+v.Arrivals, append(total.Violations, v.Violations...)
	}
	s.result.notes = append(s.result.notes, "judged by the audit logs of the hub and 8 clusters: "+total.String())
	if !s.keep {
		return nil
	}
	for name := range clusters { // disband removes the logs with the clusters
		log, err := s.lab.AuditLog(name)
		if err == nil {
			err = os.Rename(log, s.path("audit-"+name+".log"))
		}
		if err != nil {
			return fmt.Errorf("keep the audit log of %s: %w", name, err)
		}
	}
	return nil
}

func saveWay(path string, way oracle.Way) error {
	data, err := json.MarshalIndent(way, "", "  ")
	if err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("save what a component's way is: %w", err)
	}
	return nil
}

// restartingController runs a controller, kills it at one point after the other, and restarts it at
// once.
type restartingController struct {
	*rolloutFleet
	component string

	mu        sync.Mutex
	pending   []*seededPoint // points that were not hit yet
	delivered map[string]bool
	process   *keelson
	struck    bool // the process is being killed
	launched  int
	held      []*delayed
	ending    bool
	err       error

	gone chan struct{} // closed when keep has ended, so that no process is started any more
}

// seededPoint is a turning point of one seed.
type seededPoint struct {
	rolloutKillPoint
	when when
	left int // number of transitions until the kill
	hit  bool
}

// delayed is a request of a killed process that reaches the API server late: after a
// request of the next process to the same object.
type delayed struct {
	heldRequest
	on, object string
	once       sync.Once
}

func (d *delayed) release() { d.once.Do(func() { close(d.let) }) }

// lateBy is the delay of a delayed request after the next process's request.
const lateBy = 300 * time.Millisecond

func objectOf(r proxy.Request) string {
	return r.Resource + "/" + r.Subresource + " " + r.Namespace + "/" + r.Name
}

// begin starts the first process.
func (k *restartingController) begin(ctx context.Context) error {
	k.delivered, k.gone = map[string]bool{}, make(chan struct{})
	k.use(func(on string, r proxy.Request) proxy.Verdict { return k.decide(ctx, on, r) })
	if err := k.launch(); err != nil {
		return err
	}
	go k.keep(ctx)
	return nil
}

func (k *restartingController) launch() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.launched++
	p, err := k.start(launch{name: k.component, repo: k.repo, kubeconfig: k.kubeconfig}, controllerArgs("", "--cache-dir", k.path("cache"))...)
	if err != nil {
		return err
	}
	k.process, k.struck = p, false
	return nil
}

// keep starts a new process after each kill. A process that ends by itself is an error.
func (k *restartingController) keep(ctx context.Context) {
	defer close(k.gone)
	for {
		k.mu.Lock()
		p := k.process
		k.mu.Unlock()
		select {
		case <-p.done:
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
		ending, struck := k.ending, k.struck
		k.mu.Unlock()
		err := error(nil)
		switch {
		case ending:
			return
		case !struck:
			err = fmt.Errorf("keelson controller ended by itself (its log: %s)", p.log)
		default:
			err = k.launch()
		}
		if err != nil {
			k.mu.Lock()
			k.err = err
			k.mu.Unlock()
			return
		}
	}
}

func (k *restartingController) failure() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// end kills the running process, and returns after keep has ended.
func (k *restartingController) end() error {
	k.mu.Lock()
	k.ending = true
	p := k.process
	k.mu.Unlock()
	err := p.kill()
	<-k.gone
	k.use(nil)
	return errors.Join(err, k.failure())
}

// letThrough releases the delayed requests, and returns when they are answered.
func (k *restartingController) letThrough(ctx context.Context) error {
	k.mu.Lock()
	held := k.held
	k.held = nil
	k.mu.Unlock()
	for _, d := range held {
		d.release()
		select {
		case <-d.done:
		case <-time.After(hungAfter):
			return fmt.Errorf("a request to %s of %s that was let through late was not answered", d.object, d.on)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// decide kills the process at the transition of a turn that is due.
func (k *restartingController) decide(ctx context.Context, on string, r proxy.Request) proxy.Verdict {
	if !r.Write() {
		return proxy.Verdict{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.struck {
		return proxy.Verdict{Fault: proxy.Hang} // until the process has ended
	}
	for _, d := range k.held {
		if d.on == on && d.object == objectOf(r) {
			time.AfterFunc(lateBy, d.release)
		}
	}
	c := readChange(on, k.component, r, func() oracle.Rollout {
		is, _ := k.rollout(ctx, k.component) // zero on an error: the Rollout doesn't exist yet
		return is
	})
	c.delivered = k.delivered[on]
	if c.record() {
		k.delivered[on] = false
	}
	if c.object("configmaps") || c.object("deployments") {
		k.delivered[on] = true
	}
	t := k.turnOf(c)
	if t == nil {
		return proxy.Verdict{}
	}
	t.hit, k.struck = true, true
	strike := k.process.strikeDead
	say("%s: %s: killed when %s (%s)", k.name, k.component, t.name, t.when)
	switch t.when {
	case before:
		if err := strike(); err != nil {
			k.err = err
		}
		return proxy.Verdict{Fault: proxy.Hang}
	case late:
		d := &delayed{heldRequest: heldRequest{let: make(chan struct{}), done: make(chan struct{})}, on: on, object: objectOf(r)}
		k.held = append(k.held, d)
		return proxy.Verdict{Fault: proxy.DropAnswer, Before: func() { k.strike(strike); <-d.let }, Answered: func() { close(d.done) }}
	default:
		return proxy.Verdict{Fault: proxy.DropAnswer, Answered: func() { k.strike(strike) }}
	}
}

func (k *restartingController) strike(dead func() error) {
	if err := dead(); err != nil {
		k.mu.Lock()
		k.err = err
		k.mu.Unlock()
	}
}

// turnOf returns the turn that is due at a change, or nil.
func (k *restartingController) turnOf(c change) (now *seededPoint) {
	for _, t := range k.pending {
		if !t.is(c) {
			continue
		}
		if t.left--; t.left <= 0 && now == nil {
			now = t
		}
	}
	k.pending = slices.DeleteFunc(k.pending, func(t *seededPoint) bool { return t == now })
	return now
}
