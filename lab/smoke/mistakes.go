package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// withChange runs a check that changes git, and reverts the change afterwards.
func (s *smoke) withChange(ctx context.Context, do func(context.Context, map[string]int64) (string, error)) (string, error) {
	before, err := s.repo.head(ctx)
	if err != nil {
		return "", err
	}
	marks, err := s.scene.marks()
	if err != nil {
		return "", err
	}
	line, err := do(ctx, marks)
	rerr := s.repo.restore(ctx, before)
	if rerr == nil && s.takeBack != nil {
		rerr = s.takeBack(ctx)
		s.takeBack = nil
	}
	if rerr == nil {
		rerr = s.repo.push(ctx, "take the last change back")
	}
	if rerr == nil && s.wayBack != nil {
		rerr = s.wayBack(ctx)
		s.wayBack = nil
	}
	if rerr == nil && err == nil {
		rerr = s.converged(ctx)
	}
	return line, errors.Join(err, rerr)
}

// publish commits a new version of coredns and lets the testing cluster run it.
func (s *smoke) publish(ctx context.Context, version string) error {
	if err := s.repo.push(ctx, dns+" "+version); err != nil {
		return err
	}
	if err := s.repo.tag(ctx, dns, version); err != nil {
		return err
	}
	if err := s.repo.setVersion(testing, dns, version); err != nil {
		return err
	}
	return s.repo.push(ctx, "run "+dns+" "+version)
}

// checkSelector publishes a version with a changed selector, which must be held. Then it approves
// the change.
func (s *smoke) checkSelector(ctx context.Context) (string, error) {
	return s.withChange(ctx, func(ctx context.Context, marks map[string]int64) (string, error) {
		file, err := s.repo.templateWith(dns, "kind: Deployment")
		if err != nil {
			return "", err
		}
		if err := s.repo.replace(file, `(?m)^(\s*)matchLabels:\s*$`, "${1}matchLabels:\n${1}  smoke: selector"); err != nil {
			return "", err
		}
		if err := s.repo.replace(file, `(?ms)^  template:\n    metadata:\n      labels:\n`, "${0}        smoke: selector\n"); err != nil {
			return "", err
		}
		if err := s.publish(ctx, "v1.13.0"); err != nil {
			return "", err
		}
		d, err := s.stops(ctx, "Held", func(d deliveryStatus) bool { return strings.Contains(d.held, "workload-selector") })
		if err != nil {
			return "", err
		}
		events, err := s.scene.since(testing, marks)
		if err != nil {
			return "", err
		}
		for _, e := range objectWrites(events) {
			if e.Resource.Resource == "deployments" && e.Resource.Name == dns {
				return "", fmt.Errorf("the held object moved: %s", e)
			}
		}
		line := "held, and no write of that Deployment is in the audit log: " + d.message
		replaced, err := s.replaced(ctx)
		return line + "; " + replaced, err
	})
}

// replaced approves the change of the selector, so that Keelson replaces the Deployment.
func (s *smoke) replaced(ctx context.Context) (string, error) {
	before, err := s.deployment(ctx, testing)
	if err != nil {
		return "", err
	}
	s.wayBack = func(ctx context.Context) error { // the revert changes the selector too, so it needs approval
		if _, err := s.stops(ctx, "Held", func(deliveryStatus) bool { return true }); err != nil {
			return err
		}
		return s.approve(ctx)
	}
	if err := s.approve(ctx); err != nil {
		return "", err
	}
	if err := s.at(ctx, dns, "v1.13.0", testing); err != nil {
		return "", err
	}
	after, err := s.deployment(ctx, testing)
	if err != nil {
		return "", err
	}
	selector, _, err := unstructured.NestedStringMap(after.Object, "spec", "selector", "matchLabels")
	switch {
	case err != nil:
		return "", fmt.Errorf("selector: %w", err)
	case selector["smoke"] != "selector" || after.GetUID() == before.GetUID():
		return "", fmt.Errorf("approved, and the Deployment was not replaced: selector %v", selector)
	}
	return "approved in git, it was replaced", nil
}

// approve approves the held change of coredns on the testing cluster, with the hash from keelson
// diff.
func (s *smoke) approve(ctx context.Context) error {
	out, code, err := s.keelson(ctx, "diff", testing, dns, "-o", "json")
	if err != nil || code != 1 {
		return fmt.Errorf("keelson diff: exit code %d: %w", code, err)
	}
	var plan struct {
		Objects []struct{ Kind, Name, State, Hash string }
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil {
		return fmt.Errorf("keelson diff: %w", err)
	}
	for _, o := range plan.Objects {
		if o.State != "held" {
			continue
		}
		line := fmt.Sprintf("apiVersion: keelson.io/v1alpha1\nkind: Approvals\napprovals:\n- {cluster: %s, component: %s, object: %s.apps %s/%s, hash: %q, because: smoke}\n",
			testing, dns, o.Kind, dnsNamespace, o.Name, o.Hash)
		if err := s.repo.write("approvals/smoke.yaml", line); err != nil {
			return err
		}
	}
	return s.repo.push(ctx, "approve the selector")
}

// stops waits until coredns on the testing cluster has the given sync state and as returns true.
func (s *smoke) stops(ctx context.Context, sync string, as func(deliveryStatus) bool) (d deliveryStatus, err error) {
	err = until(ctx, func(ctx context.Context) error {
		all, err := s.scene.deliveries(ctx)
		if err != nil {
			return err
		}
		if d = all[testing+"."+dns]; d.sync != sync || !as(d) {
			return fmt.Errorf("want %s: %s", sync, d)
		}
		return nil
	})
	return d, err
}

// blocked makes a mistake with coredns on the testing cluster, and in the same push a valid change
// of the beacon. The delivery must report where the mistake is. coredns must stay unchanged, and
// the beacon must arrive everywhere.
func (s *smoke) blocked(ctx context.Context, where string, mistake func(context.Context) error) (string, error) {
	return s.withChange(ctx, func(ctx context.Context, marks map[string]int64) (string, error) {
		push, err := s.setBeacon()
		if err != nil {
			return "", err
		}
		if err := mistake(ctx); err != nil {
			return "", err
		}
		d, err := s.stops(ctx, "Blocked", func(d deliveryStatus) bool { return strings.Contains(d.message, where) })
		if err != nil {
			return "", err
		}
		if err := until(ctx, func(ctx context.Context) error { return s.beaconAt(ctx, push) }); err != nil {
			return "", err
		}
		if err := pause(ctx, 3*time.Second); err != nil {
			return "", err
		}
		if err := s.onlyBeaconSince(marks); err != nil {
			return "", err
		}
		return d.message + "\nthe clusters stayed as they were; the other change of the same push arrived on all", nil
	})
}

func (s *smoke) onlyBeaconSince(marks map[string]int64) error {
	for _, c := range s.scene.clusters {
		events, err := s.scene.since(c, marks)
		if err != nil {
			return err
		}
		for _, e := range objectWrites(events) {
			if e.Resource.Name != beacon {
				return fmt.Errorf("a mistake changed %s: %s", c, e)
			}
		}
	}
	return nil
}

// checkBrokenTemplate publishes a version that does not render.
func (s *smoke) checkBrokenTemplate(ctx context.Context) (string, error) {
	return s.blocked(ctx, "templates/", func(ctx context.Context) error {
		file, err := s.repo.templateWith(dns, "kind: Deployment")
		if err != nil {
			return err
		}
		if err := s.repo.replace(file, `(?m)^kind: Deployment$`, "kind: Deployment\n{{ fail \"broken on purpose\" }}"); err != nil {
			return err
		}
		return s.publish(ctx, "v1.13.1")
	})
}

// checkEndlessTemplate publishes a version whose template never ends. The beacon must arrive
// although the template is still rendered.
func (s *smoke) checkEndlessTemplate(ctx context.Context) (string, error) {
	return s.blocked(ctx, "and was ended", func(ctx context.Context) error {
		file, err := s.repo.templateWith(dns, "kind: Deployment")
		if err != nil {
			return err
		}
		if err := s.repo.replace(file, `(?m)^kind: Deployment$`, "kind: Deployment\n{{ range 1000000000000 }}{{ end }}"); err != nil {
			return err
		}
		return s.publish(ctx, "v1.13.3")
	})
}

// checkSchema sets a value that the chart's schema rejects.
func (s *smoke) checkSchema(ctx context.Context) (string, error) {
	return s.blocked(ctx, "clusters/"+testing+"/coredns.yaml:", func(ctx context.Context) error {
		name, err := s.repo.integerValue(dns)
		if err != nil {
			return err
		}
		if err := s.repo.setValue(testing, dns, name, "many"); err != nil {
			return err
		}
		return s.repo.push(ctx, "many replicas")
	})
}

// checkUnknownKey adds a misspelt key.
func (s *smoke) checkUnknownKey(ctx context.Context) (string, error) {
	return s.blocked(ctx, "clusters/"+testing+"/coredns.yaml:", func(ctx context.Context) error {
		if err := s.repo.metaConfig(testing, dns, func(m map[string]any) { m["valeus"] = map[string]any{} }); err != nil {
			return err
		}
		return s.repo.push(ctx, "a misspelt key")
	})
}

// checkMovedTag moves the tag of the running version, and moves it back.
func (s *smoke) checkMovedTag(ctx context.Context) (string, error) {
	version, err := s.version(ctx, testing, dns)
	if err != nil {
		return "", err
	}
	old, err := s.repo.git(ctx, "rev-parse", dns+"/"+version)
	if err != nil {
		return "", err
	}
	return s.blocked(ctx, "moved", func(ctx context.Context) error {
		if err := s.repo.write("components/coredns/template/templates/extra.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: coredns-extra\n"); err != nil {
			return err
		}
		if err := s.repo.push(ctx, "not a new version"); err != nil {
			return err
		}
		s.takeBack = func(ctx context.Context) error { return s.repo.moveTag(ctx, dns+"/"+version, strings.TrimSpace(old)) }
		return s.repo.moveTag(ctx, dns+"/"+version, "HEAD")
	})
}

// checkMissingTag selects a version that was never published.
func (s *smoke) checkMissingTag(ctx context.Context) (string, error) {
	return s.blocked(ctx, "clusters/"+testing+"/coredns.yaml:", func(ctx context.Context) error {
		if err := s.repo.setVersion(testing, dns, "v9.9.9"); err != nil {
			return err
		}
		return s.repo.push(ctx, "a version that does not exist")
	})
}

// checkSymlink publishes a version that contains a symbolic link.
func (s *smoke) checkSymlink(ctx context.Context) (string, error) {
	return s.blocked(ctx, "secrets.yaml", func(ctx context.Context) error {
		if _, err := run(ctx, s.repo.work, "ln", "-s", "/etc/passwd", "components/coredns/template/templates/secrets.yaml"); err != nil {
			return err
		}
		return s.publish(ctx, "v1.13.2")
	})
}
