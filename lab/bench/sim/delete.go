package sim

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// delete deletes an object, or marks it as deleting if it has finalizers.
func (s *server) delete(k *kind, at key, o *metav1.DeleteOptions) (*object, bool, error) {
	gr := k.groupResource()
	w := &write{k: k, key: at, dryRun: len(o.DryRun) > 0}
	if p := o.Preconditions; p != nil {
		if p.UID != nil {
			w.uid = *p.UID
		}
		if p.ResourceVersion != nil {
			w.version = *p.ResourceVersion
		}
	}
	for range races {
		now := s.store.get(gr, at)
		if now == nil {
			return nil, false, apierrors.NewNotFound(gr, at.name)
		}
		if err := w.mustBe(now); err != nil {
			return nil, false, err
		}
		if w.dryRun {
			return now, true, nil
		}
		marked, gone, err := s.end(k, now, o)
		if !errors.Is(err, errRaced) {
			return marked, gone, err
		}
	}
	return nil, false, modified(gr, at.name)
}

// mustBe checks the preconditions of a delete. Its messages are more detailed than those of other
// writes, as in an API server.
func (w *write) mustBe(now *object) error {
	of := schema.GroupResource{Group: w.k.Group, Resource: w.k.Kind} // Kubernetes uses the kind here, too
	if w.uid != "" && string(w.uid) != now.uidText() {
		return apierrors.NewConflict(of, w.key.name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). "+
			"The object might have been deleted and then recreated", w.uid, now.uidText()))
	}
	if version := fmt.Sprint(now.version); w.version != "" && w.version != version {
		return apierrors.NewConflict(of, w.key.name, fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). "+
			"The object might have been modified", w.version, version))
	}
	return nil
}

// end deletes an object or marks it as deleting. Foreground deletion ends at once, because the
// simulation has no dependents.
func (s *server) end(k *kind, now *object, o *metav1.DeleteOptions) (*object, bool, error) {
	content, err := now.anonymous()
	if err != nil {
		return nil, false, err
	}
	u := &unstructured.Unstructured{Object: content}
	release(u)
	foreground := o.PropagationPolicy != nil && *o.PropagationPolicy == metav1.DeletePropagationForeground
	if len(u.GetFinalizers()) == 0 && !foreground {
		last, err := s.remove(k, now)
		return last, true, err
	}
	if u.GetDeletionTimestamp() != nil {
		return now, false, nil
	}
	t := metav1.NewTime(s.fleet.now())
	u.SetDeletionTimestamp(&t)
	u.SetDeletionGracePeriodSeconds(new(int64))
	if k.generation {
		u.SetGeneration(u.GetGeneration() + 1)
	}
	held := len(u.GetFinalizers()) > 0
	if foreground {
		u.SetFinalizers(append(u.GetFinalizers(), metav1.FinalizerDeleteDependents))
	}
	marked, err := s.fleet.bodies.intern(u.Object, false)
	if err != nil {
		return nil, false, err
	}
	is, err := s.store.put(k.groupResource(), now.key, now, marked)
	if err != nil {
		return nil, false, err
	}
	if held {
		return is, false, nil
	}
	_, err = s.remove(k, is) // as the garbage collector does
	return is, false, err
}

// remove removes an object and everything that depends on it.
func (s *server) remove(k *kind, now *object) (*object, error) {
	last, err := s.store.put(k.groupResource(), now.key, now, nil)
	if err != nil {
		return nil, err
	}
	return last, s.removed(k, last)
}
