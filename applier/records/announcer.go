package records

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/keelson-io/keelson/api/v1alpha1"
	"github.com/keelson-io/keelson/differ"
	"github.com/keelson-io/keelson/differ/jsonsize"
)

const (
	// intentsName is the Secret that holds the announcements of all components of a cluster.
	intentsName = "keelson-intents"
	keyIntents  = "intents"
	// announcedObjects is the most objects that one announcement names. A pass that updates
	// more objects writes its intents into the record.
	announcedObjects = 100
	// maxAnnouncements is the size in bytes of the Secret above which announcements are
	// refused, so that takeovers still fit.
	maxAnnouncements = secretSize / 2
	// maxTakeovers is how many takeovers the Secret keeps. Most old ones are of removed components.
	maxTakeovers = 2 * maxRecords
	// intentsValues is the most JSON values that are decoded: the cluster may be hostile.
	intentsValues = 100_000
	// announceTries is how often a write is tried when other sessions write the Secret, too.
	announceTries = 10
)

// takeoverError reports that an entry of another session conflicts with an announcement or a
// takeover: an announcement that this session has not read, or a takeover.
type takeoverError struct{ by announcement }

func (e *takeoverError) Error() string {
	return fmt.Sprintf("session %s announced an update or took the component over at resourceVersion %s of its record",
		cmp.Or(e.by.Writer, "(unknown)"), cmp.Or(e.by.Record, e.by.TakenOverAt))
}

// errNoRoom reports that the Secret is too full for an announcement.
var errNoRoom = errors.New("the Secret of announcements is too full")

// An announcement lists the objects that a session is about to update, as intents of a record
// do. One Secret holds the announcements of all components. An announcement is in force while
// the component's record has the resourceVersion Record: each write of the record ends it.
//
// A session that takes a component over first writes its takeover to the same Secret. Of two
// sessions, the second to write therefore reads the entry of the first. TakenOverAt outlives the
// takeover: a session with an older copy of the record can no longer announce updates.
type announcement struct {
	Record  string      `json:"record,omitempty"` // resourceVersion of the component's record
	Writer  string      `json:"writer,omitempty"`
	Objects []differ.ID `json:"objects,omitempty"`
	// TakenOverAt is the resourceVersion that the record had when it was last taken over.
	TakenOverAt string `json:"claimed,omitempty"`
}

func (a *announcement) equal(b *announcement) bool {
	return a == b || a != nil && b != nil && a.Record == b.Record && a.Writer == b.Writer && a.TakenOverAt == b.TakenOverAt && slices.Equal(a.Objects, b.Objects)
}

// before reports whether a resourceVersion is older than another one. The empty version is older
// than any other. The result is false for versions that are not numbers.
func before(version, than string) bool {
	if version == "" || than == "" {
		return than != ""
	}
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order < 0
}

// announcer reads and writes the announcements of one cluster for one session.
type announcer struct {
	// writer identifies the session and the connection. A new connection of a session does not
	// know which requests of the old one are still on their way, so it takes over from it.
	writer string
	// load returns the Secret, or nil when there is none. save creates the Secret when its
	// resourceVersion is empty, replaces that version else, and returns the new version.
	load func(context.Context) (*corev1.Secret, error)
	save func(context.Context, *corev1.Secret) (string, error)

	mu sync.Mutex
	// version is the resourceVersion of the Secret with the entries all; empty: there is no
	// Secret. loaded: both are set.
	version string
	loaded  bool
	all     map[string]announcement // by component
	own     map[string]announcement // entries of this session that are still in force
	waiting []*announceRequest
	writing bool
}

// announceRequest is one change of the Secret.
type announceRequest struct {
	component, record string
	objects           []differ.ID
	takeover          bool          // take the component over
	retract           bool          // only remove the session's entry
	known             *announcement // the entry that was merged into the record; nil: none
	invalid           *announcement // an entry whose versions this cluster never had; nil: none
	done              chan error
}

func newAnnouncer(secrets Secrets, session string) *announcer {
	load := func(ctx context.Context) (*corev1.Secret, error) { return secrets.Get(ctx, intentsName) }
	return &announcer{writer: session + "#" + rand.Text()[:8], load: load, save: secrets.Write, own: map[string]announcement{}}
}

// entry returns the announcement in force for a component whose record has a resourceVersion;
// nil: none.
func (n *announcer) entry(ctx context.Context, component, version string) (*announcement, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.read(ctx); err != nil {
		return nil, err
	}
	a := n.inForce(component, n.all[component])
	if a.Record == "" || a.Record != version {
		return nil, nil
	}
	return &a, nil
}

// read reads the Secret unless it is loaded. The caller holds the lock.
func (n *announcer) read(ctx context.Context) error {
	if n.loaded {
		return nil
	}
	s, err := n.load(ctx)
	if err != nil {
		return err
	}
	all, version := map[string]announcement{}, ""
	if s != nil {
		version = s.ResourceVersion
		meter := jsonsize.Meter{MaxBytes: secretSize, MaxValues: intentsValues, Each: jsonsize.Never}
		err := meter.Count(s.Data[keyIntents])
		if err == nil {
			err = json.Unmarshal(s.Data[keyIntents], &all)
		}
		if err != nil {
			return fmt.Errorf("decode Secret %s/%s with the announced updates: %w: stop all Keelson processes that write to the cluster, and delete the Secret", v1alpha1.Namespace, intentsName, err)
		}
	}
	n.all, n.version, n.loaded = all, version, true
	return nil
}

// write carries out a request. Requests that arrive during a write of the Secret are written
// together by the next one. The error is a [takeoverError] when an entry of another session
// conflicts with the request.
func (n *announcer) write(ctx context.Context, a *announceRequest) error {
	a.done = make(chan error, 1)
	n.mu.Lock()
	n.waiting = append(n.waiting, a)
	first := !n.writing
	n.writing = true
	n.mu.Unlock()
	if first {
		go n.writeAll(ctx)
	}
	return <-a.done
}

// writeAll writes until no request waits. It serves requests of several callers, so it outlives
// the context of the first one.
func (n *announcer) writeAll(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.waiting) > 0 {
		batch := n.waiting
		n.waiting = nil
		ctx, cancel := Outlive(ctx)
		refused, err := n.writeBatch(ctx, batch)
		cancel()
		for _, a := range batch {
			if r := refused[a]; r != nil {
				a.done <- r
			} else {
				a.done <- err
			}
		}
	}
	n.writing = false
}

// writeBatch writes a batch of requests at once, and returns the refused ones. The caller holds
// the lock, which is released during the request.
func (n *announcer) writeBatch(ctx context.Context, batch []*announceRequest) (refused map[*announceRequest]error, err error) {
	for range announceTries {
		fresh := !n.loaded
		if err := n.read(ctx); err != nil {
			return nil, err
		}
		var next map[string]announcement
		next, refused = n.merge(batch)
		if len(refused) > 0 && !fresh {
			n.loaded = false // the refusal may be out of date
			continue
		}
		if len(refused) == len(batch) {
			return refused, nil
		}
		var version string
		if version, err = n.send(ctx, next); err == nil {
			n.all, n.version = next, version
			return refused, nil
		}
		n.loaded = false // the write may have been carried out
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			break
		}
	}
	return refused, err
}

// merge returns the new entries of the Secret: all of other sessions, those of this session that
// are in force, and the batch without the refused requests.
func (n *announcer) merge(batch []*announceRequest) (map[string]announcement, map[*announceRequest]error) {
	next, refused := map[string]announcement{}, map[*announceRequest]error{}
	for component, is := range n.all {
		if is = n.inForce(component, is); is.Record != "" || is.TakenOverAt != "" {
			next[component] = is
		}
	}
	for component, own := range n.own { // the Secret may have been deleted by hand
		if is := next[component]; before(is.Record, own.Record) && (before(is.TakenOverAt, own.Record) || is.TakenOverAt == own.TakenOverAt) {
			next[component] = own
		}
	}
	dropOldTakeovers(next)
	room := maxAnnouncements
	for component, is := range next {
		room -= is.size(component)
	}
	for _, a := range batch {
		if a.retract {
			continue // release removed the entry from own
		}
		is := next[a.component]
		entry := announcement{Record: a.record, Writer: n.writer, Objects: slices.Clone(a.objects), TakenOverAt: is.TakenOverAt}
		if a.takeover {
			entry.TakenOverAt = a.record
		}
		switch size := entry.size(a.component); {
		case !n.mayFollow(a, &is), !a.takeover && !before(next[droppedTakeovers].TakenOverAt, a.record):
			refused[a] = &takeoverError{is}
			delete(n.own, a.component)
		case !a.takeover && room < size:
			refused[a] = errNoRoom
		default:
			room -= size
			next[a.component], n.own[a.component] = entry, entry // the write may be carried out without an answer
		}
	}
	return next, refused
}

// droppedTakeovers is the key of the entry with the TakenOverAt of the newest dropped takeover.
const droppedTakeovers = ""

// dropOldTakeovers drops the older half of the takeovers when there are more than maxTakeovers. Updates
// of records that are as old as a dropped takeover can then no longer be announced.
func dropOldTakeovers(all map[string]announcement) {
	if len(all) <= maxTakeovers {
		return
	}
	var takeovers []string
	for component, is := range all {
		if is.Record == "" && component != droppedTakeovers {
			takeovers = append(takeovers, component)
		}
	}
	slices.SortFunc(takeovers, func(a, b string) int {
		switch x, y := all[a].TakenOverAt, all[b].TakenOverAt; {
		case before(x, y):
			return -1
		case before(y, x):
			return 1
		}
		return strings.Compare(a, b)
	})
	for _, component := range takeovers[:len(takeovers)/2] {
		if is := all[component]; before(all[droppedTakeovers].TakenOverAt, is.TakenOverAt) {
			all[droppedTakeovers] = announcement{TakenOverAt: is.TakenOverAt}
		}
		delete(all, component)
	}
}

// size estimates the bytes that an entry takes in the Secret.
func (a *announcement) size(component string) int {
	n := len(component) + len(a.Record) + len(a.Writer) + len(a.TakenOverAt) + 64
	for _, id := range a.Objects {
		n += len(id.Group) + len(id.Kind) + len(id.Namespace) + len(id.Name) + 64
	}
	return n
}

// inForce returns an entry without this session's announcement where that has ended.
func (n *announcer) inForce(component string, is announcement) announcement {
	if _, holds := n.own[component]; is.Writer == n.writer && !holds {
		return announcement{TakenOverAt: is.TakenOverAt}
	}
	return is
}

// mayFollow reports whether a request may replace an entry. The entry has to be of an older
// record, of this session, or merged into the record that a takeover is about. And no session may
// have taken the component over at this version of the record, or a later one.
func (n *announcer) mayFollow(a *announceRequest, is *announcement) bool {
	switch {
	case a.takeover && a.invalid != nil && is.equal(a.invalid):
		return true
	case is.Record == a.record && is.Writer == n.writer:
		// A takeover by this session does not allow it to announce: the session from which the
		// component was taken over may still write the record.
		return a.takeover || before(is.TakenOverAt, a.record)
	case before(is.Record, a.record), a.takeover && is.equal(a.known):
		return before(is.TakenOverAt, a.record) || a.takeover && is.TakenOverAt == a.record
	}
	return false
}

func (n *announcer) send(ctx context.Context, all map[string]announcement) (version string, err error) {
	data, err := json.Marshal(all)
	if err != nil {
		return "", fmt.Errorf("encode announcements: %w", err)
	}
	if len(data) > secretSize {
		return "", fmt.Errorf("announcements take %d bytes, more than fit into a Secret", len(data))
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: intentsName, Namespace: v1alpha1.Namespace, ResourceVersion: n.version},
		Type:       "keelson.io/intents", Data: map[string][]byte{keyIntents: data},
	}
	n.mu.Unlock()
	defer n.mu.Lock()
	return n.save(ctx, s)
}

// release ends this session's announcement of a component: its updates have ended, or its record
// has another resourceVersion.
func (n *announcer) release(component string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.own, component)
}

// retract removes this session's announcement of a component whose record did not change. An
// entry that stays makes the next session touch its objects, which is safe: errors are ignored.
func (n *announcer) retract(ctx context.Context, component string) {
	n.release(component)
	_ = n.write(ctx, &announceRequest{component: component, retract: true})
}
