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
	"github.com/keelson-io/keelson/lab/harness"
	"github.com/keelson-io/keelson/lab/harness/must"
)

// The versions of a component's planned changes. The last version crashes in one stage.
const (
	firstVersion      = "v1.0.0"
	supersededVersion = "v1.1.0" // superseded during its rollout
	steadyVersion     = "v1.2.0"
	revertedVersion   = "v1.3.0" // fails a check, and is reverted
	crashing          = "v1.4.0"
)

// plannedChangeTimeout is how long one planned change may take, with all its kills. The controller
// restarts after each kill, which takes many seconds on a busy machine.
const plannedChangeTimeout = 15 * time.Minute

// runRollouts kills the controller at every transition of rollouts.
func runRollouts(ctx context.Context, w *world, r *result) {
	c := w.newRolloutFleet()
	must.Finally(func() {
		c.begin(ctx)
		(&rolloutRun{rolloutFleet: c, result: r, kills: map[string]map[int]when{}}).all(ctx)
	}, func() error { return c.closeAll(context.WithoutCancel(ctx)) })
}

// all takes one component after the other through all planned changes: the first without a
// kill, for comparison, and then one per seed.
func (s *rolloutRun) all(ctx context.Context) {
	r, points := s.result, rolloutKillPoints()
	r.did, r.must = fmt.Sprintf("SIGKILL of keelson controller at %d transitions of rollouts, on 8 clusters", len(points)), len(points)*s.Rollouts
	for _, name := range s.clusters() {
		harness.Say("%s: %s is up", s.name, name)
	}
	var calm, ends []state
	must.Wrap(func() { calm = s.roll(ctx, -1, nil) }, "the run without a kill")
	for seed := range s.Rollouts {
		started, killed := time.Now(), r.number
		must.Wrap(func() { ends = s.roll(ctx, seed, points) }, "seed %d", seed)
		known := len(r.violations)
		for i, end := range ends {
			for _, line := range end.differences(calm[i]) {
				r.violate("seed %d, after %s: %s, and without a kill it is otherwise", seed, plannedChanges[i].name, line)
			}
		}
		if len(r.violations) == known {
			r.survived += r.number - killed
		}
		harness.Say("%s: seed %d of %d in %s, %d kills, %d violations until now", s.name, seed+1, s.Rollouts, time.Since(started).Round(100*time.Millisecond), r.number, len(r.violations))
	}
	s.table(points)
	must.Each(s.judge, func() { s.complete(points) })
}

// rolloutRun is the state of a run of this scenario.
type rolloutRun struct {
	*rolloutFleet
	result     *result
	components []*rolloutComponent
	kills      map[string]map[int]when // by name of the point, and seed
}

// plannedChange is a change in git and its expected end.
type plannedChange struct {
	name string
	// goes commits the change, and returns when the rollout has reached its end.
	goes func(ctx context.Context, p *componentRun)
}

// componentRun is a component with its planned changes.
type componentRun struct {
	*rolloutComponent
	controller *restartingController
	// late is the stage during which a newer commit supersedes the rollout. refused is the
	// stage and the name of the check that fails once.
	late    string
	refused [2]string
}

// plannedChanges are the planned changes of a component. Together they make each transition of a rollout.
var plannedChanges = []plannedChange{ //nolint:gochecknoglobals // a table
	{"the first version", func(ctx context.Context, p *componentRun) {
		p.publish(ctx, firstVersion, nil)
		p.until(ctx, "Complete", firstVersion)
	}},
	{"a version that is superseded", func(ctx context.Context, p *componentRun) {
		p.checks.refuse(p.name, p.refused[0], p.refused[1], 1)
		p.publish(ctx, supersededVersion, nil)
		p.reaches(ctx, p.late, supersededVersion)
		p.publish(ctx, steadyVersion, nil)
		p.until(ctx, "Complete", steadyVersion)
	}},
	{"a version that fails a check, and is reverted", func(ctx context.Context, p *componentRun) {
		p.checks.refuse(p.name, failsIn, "good", -1)
		defer p.checks.refuse(p.name, failsIn, "good", 0)
		p.publish(ctx, revertedVersion, map[string]string{"pipelines/" + p.name + ".yaml": p.pipeline(3 * time.Second)})
		p.until(ctx, "Paused", "")
		p.push(ctx, p.repo, p.wanted(steadyVersion))
		p.until(ctx, "Complete", steadyVersion)
	}},
	{"a version that crashes in " + crashesIn, func(ctx context.Context, p *componentRun) {
		p.publish(ctx, crashing, nil)
		p.until(ctx, "RolledBack", "")
	}},
}

// revisions matches the annotation with the revision that the Deployment controller counts.
var revisions = regexp.MustCompile(`"deployment.kubernetes.io/revision":"\d+",?`)

// roll takes one component through all planned changes, with a kill at each point, or without
// kills if points is nil. It returns the component's state after each planned change.
func (s *rolloutRun) roll(ctx context.Context, seed int, points []rolloutKillPoint) (ends []state) {
	c := &rolloutComponent{rolloutFleet: s.rolloutFleet, name: fmt.Sprintf("rollout-%02d", seed+1)}
	s.components = append(s.components, c)
	s.ledger.OwnNamespace(c.name)
	k := &restartingController{rolloutFleet: s.rolloutFleet, component: c.name}
	for i, p := range points {
		k.pending = append(k.pending, &seededPoint{rolloutKillPoint: p, when: []when{before, after, late}[(i+seed)%3], left: 1 + s.rand.IntN(p.chances)})
	}
	all := slices.Clone(k.pending)
	k.begin(ctx)
	must.Finally(func() { ends = s.changes(ctx, c, k, points == nil) }, k.end)
	for _, t := range all {
		if t.hit {
			if s.kills[t.name] == nil {
				s.kills[t.name] = map[int]when{}
			}
			s.kills[t.name][seed] = t.when
			s.result.number++
		}
	}
	return ends
}

// changes carries out all planned changes of a component.
func (s *rolloutRun) changes(ctx context.Context, c *rolloutComponent, k *restartingController, show bool) (ends []state) {
	p := &componentRun{rolloutComponent: c, controller: k, late: []string{"canary", "smallflow"}[s.rand.IntN(2)]}
	refusable := [][2]string{{"testing", "ready"}, {"canary", "ready"}, {"canary", "good"}, {"smallflow", "good"}, {"production", "ready"}}
	p.refused = refusable[s.rand.IntN(len(refusable))]
	for _, v := range plannedChanges {
		began := time.Now()
		must.Wrap(func() {
			v.goes(ctx, p)
			k.releaseHeld(ctx)
			ends = append(ends, p.untilUnchanged(ctx))
		}, "%s: %s", c.name, v.name)
		harness.Say("%s: %s: %s, in %s", s.name, c.name, v.name, time.Since(began).Round(100*time.Millisecond))
		if show {
			p.show(ctx)
		}
	}
	return ends
}

// until waits until the rollout is in a phase, and unless version is empty, until every
// cluster has the version.
func (p *componentRun) until(ctx context.Context, phase, version string) {
	p.watch(ctx, func(ctx context.Context, r oracle.Rollout) {
		if r.Phase != phase {
			must.Failf("the rollout to %s is %s in stage %q (%s), and not %s", r.To, r.Phase, r.Stage, r.Because, phase)
		}
		if version == "" {
			return
		}
		shown := p.statuses(ctx, p.name)
		for _, name := range p.clusters() {
			if d := shown[name]; d.Applied != version || d.Version != version || d.Sync != "Synced" || d.Health != "Healthy" {
				must.Failf("%s: %s, applied %s, and not %s", name, d, d.Applied, version)
			}
		}
	})
}

// reaches waits until a cluster of a stage is released to a version.
func (p *componentRun) reaches(ctx context.Context, stage, version string) {
	p.watch(ctx, func(_ context.Context, r oracle.Rollout) {
		for _, c := range r.Clusters {
			if c.Stage == stage && c.Released != nil && r.To == version {
				return
			}
		}
		must.Failf("the rollout to %s is %s in stage %q (%s)", r.To, r.Phase, r.Stage, r.Because)
	})
}

// watch waits for a condition of the Rollout, and commits approvals meanwhile.
func (p *componentRun) watch(ctx context.Context, is func(context.Context, oracle.Rollout)) {
	until(ctx, plannedChangeTimeout, func(ctx context.Context) {
		must.Do(p.controller.failure())
		r := p.rollout(ctx, p.name)
		p.approve(ctx, r)
		is(ctx, r)
	})
}

// untilUnchanged waits until a component has not changed for 2 s, and returns its state: the
// objects on each cluster, and the statuses on the hub, without the parts that may differ
// between two runs.
func (p *componentRun) untilUnchanged(ctx context.Context) (last state) {
	var since time.Time
	until(ctx, hungAfter, func(ctx context.Context) {
		now := p.currentState(ctx)
		if len(last) == 0 || len(now.differences(last)) > 0 {
			last, since = now, time.Now()
		}
		if rest := time.Since(since); rest < 2*time.Second {
			must.Failf("it stands so for %s", rest)
		}
	})
	return last
}

func (p *componentRun) currentState(ctx context.Context) state {
	out := state{}
	for _, name := range p.clusters() {
		states := statesIn(ctx, p.clients[name], p.name)
		for key, content := range states[p.name] {
			// The Deployment controller counts the versions that a cluster has had. It is
			// random which clusters get a superseded version.
			out[name+": "+key] = revisions.ReplaceAllString(content, "")
		}
	}
	shown := p.statuses(ctx, p.name)
	r := p.rollout(ctx, p.name)
	for name, d := range shown {
		has := r.ClusterNamed(name)
		out[name+": Delivery"] = fmt.Sprintf("%s %s, %s of %s; released: %t, back: %t, at what git wants: %t",
			d.Sync, d.Health, d.Applied, d.Version, has.Released != nil, has.Back, has.Want == d.TargetHash)
	}
	var through []string
	for _, s := range r.Stages {
		if s.Passed != nil {
			through = append(through, s.Name)
		}
	}
	out["Rollout"] = fmt.Sprintf("%s to %s, back: %t, passed: %v", r.Phase, r.To, r.Back, through)
	return out
}

// show prints the output of keelson rollout show.
func (p *componentRun) show(ctx context.Context) {
	out := p.succeed(ctx, launch{name: "show", repo: p.repo, kubeconfig: p.straight}, "rollout", "show", p.name, "--context", target)
	fmt.Printf("\n$ keelson rollout show %s\n%s\n", p.name, out)
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

// complete fails unless every point was hit on every seed.
func (s *rolloutRun) complete(points []rolloutKillPoint) {
	var missed []string
	for _, p := range points {
		if n := len(s.kills[p.name]); n < s.Rollouts {
			missed = append(missed, fmt.Sprintf("%s (%d of %d)", p.name, n, s.Rollouts))
		}
	}
	if len(missed) > 0 {
		must.Failf("transitions that were not hit: %s", strings.Join(missed, "; "))
	}
}

// judge lets the oracle judge the audit logs of the clusters, and the course of each component
// by all logs. world.judge judges the hub's own log.
func (s *rolloutRun) judge() {
	hub, clusters := s.events()
	for name, events := range clusters {
		v := oracle.Judge(events, s.ledger)
		for _, violation := range v.Violations {
			s.result.violate("%s: %s", name, violation)
		}
		if v.Writes == 0 {
			s.result.violate("%s: its audit log shows no write: nothing was tested", name)
		}
	}
	var total oracle.CourseVerdict
	for _, c := range s.components {
		course := c.course()
		must.Do(os.WriteFile(s.path("course-"+c.name+".json"), must.Get(json.MarshalIndent(course, "", "  ")), 0o600))
		v := oracle.JudgeCourse(course, hub, clusters)
		s.result.violations = append(s.result.violations, v.Violations...)
		if v.Empty() {
			s.result.violate("the logs show too little of %s: %s", c.name, v)
		}
		total.Statuses, total.Releases, total.Passes = total.Statuses+v.Statuses, total.Releases+v.Releases, total.Passes+v.Passes
		total.Arrivals, total.Violations = total.Arrivals+v.Arrivals, append(total.Violations, v.Violations...)
	}
	s.result.notes = append(s.result.notes, "judged by the audit logs of the hub and 8 clusters: "+total.String())
	if !s.keep {
		return
	}
	for name := range clusters { // closeAll removes the logs with the clusters
		must.Do(os.Rename(must.Get(s.lab.AuditLog(name)), s.path("audit-"+name+".log")))
	}
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
	*heldRequest

	on, object string
}

// lateBy is the delay of a delayed request after the next process's request.
const lateBy = 300 * time.Millisecond

func objectOf(r proxy.Request) string {
	return r.Resource + "/" + r.Subresource + " " + r.Namespace + "/" + r.Name
}

// begin starts the first process.
func (k *restartingController) begin(ctx context.Context) {
	k.delivered, k.gone = map[string]bool{}, make(chan struct{})
	k.use(func(on string, r proxy.Request) proxy.Verdict { return k.decide(ctx, on, r) })
	k.launch()
	go k.keep(ctx)
}

func (k *restartingController) launch() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.process = k.start(launch{name: k.component, repo: k.repo, kubeconfig: k.kubeconfig}, controllerArgs("", "--cache-dir", k.path("cache"))...)
	k.struck = false
}

// keep starts a new process after each kill. A process that ends by itself is an error.
func (k *restartingController) keep(ctx context.Context) {
	defer close(k.gone)
	for {
		k.mu.Lock()
		p := k.process
		k.mu.Unlock()
		select {
		case <-p.Done():
		case <-ctx.Done():
			return
		}
		k.mu.Lock()
		ending, struck := k.ending, k.struck
		k.mu.Unlock()
		if ending {
			return
		}
		if !struck {
			k.fail(fmt.Errorf("keelson controller ended by itself (its log: %s)", p.Log))
			return
		}
		if err := must.Try(k.launch); err != nil {
			k.fail(err)
			return
		}
	}
}

func (k *restartingController) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
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
	err := p.Kill()
	<-k.gone
	k.use(nil)
	return errors.Join(err, k.failure())
}

// releaseHeld releases the delayed requests, and returns when they are answered.
func (k *restartingController) releaseHeld(ctx context.Context) {
	k.mu.Lock()
	held := k.held
	k.held = nil
	k.mu.Unlock()
	for _, d := range held {
		must.Wrap(func() { d.release(ctx) }, "%s of %s", d.object, d.on)
	}
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
			time.AfterFunc(lateBy, d.forward)
		}
	}
	c := readChange(on, k.component, r, func() oracle.Rollout {
		// Zero on an error: the Rollout doesn't exist yet.
		is, _ := must.TryGet(func() oracle.Rollout { return k.rollout(ctx, k.component) })
		return is
	})
	c.delivered = k.delivered[on]
	if c.record() {
		k.delivered[on] = false
	}
	if c.object("configmaps") || c.object("deployments") {
		k.delivered[on] = true
	}
	t := k.duePoint(c)
	if t == nil {
		return proxy.Verdict{}
	}
	t.hit, k.struck = true, true
	dead := k.process.killNow
	harness.Say("%s: %s: killed when %s (%s)", k.name, k.component, t.name, t.when)
	v, held := t.when.verdict(func() {
		if err := dead(); err != nil {
			k.fail(err)
		}
	})
	if held != nil {
		k.held = append(k.held, &delayed{heldRequest: held, on: on, object: objectOf(r)})
	}
	return v
}

// duePoint returns the turn that is due at a change, or nil.
func (k *restartingController) duePoint(c change) (now *seededPoint) {
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
