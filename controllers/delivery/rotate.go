package delivery

import (
	"context"
	"fmt"

	"github.com/keelson-io/keelson/controllers/connect"
)

// connectionCallbacks returns the callbacks of an agent for changes of its connection.
func (a *agent) connectionCallbacks() connect.Callbacks {
	return connect.Callbacks{
		Renewed: func() {
			a.log.Info("the connection has new credentials")
			a.tryNow()
		},
		Trouble: a.troubled,
		Moved: func(server string) {
			a.log.Info("the connection leads to another server by now", "server", server)
			a.moved(a.name)
		},
	}
}

// troubled notes why new credentials can't be used. Work goes on with the previous credentials.
func (a *agent) troubled(err error) {
	a.mu.Lock()
	a.aside = ""
	if err != nil {
		a.aside = fmt.Sprintf("the connection goes on with the credentials from before: %v", err)
	}
	text := a.aside
	a.mu.Unlock()
	if err != nil {
		a.log.Warn("the connection's new credentials can't be used; those from before stay in use", "error", err)
	} else {
		a.log.Info("the connection's credentials can be used again")
	}
	a.reportCredentials(a.name, text)
	a.all() // every status shows the note
}

// credentialsChanged makes the connection read its settings again.
func (a *agent) credentialsChanged() {
	a.mu.Lock()
	link := a.link
	a.mu.Unlock()
	if link != nil {
		link.line.Again()
		return
	}
	select {
	case a.dialSoon <- struct{}{}:
	default:
	}
}

// tryNow queues all components, since reconciles with the previous credentials may have failed.
func (a *agent) tryNow() {
	for _, name := range a.components() {
		a.queue.Forget(name)
		a.refused.Forget(name)
	}
	if a.lost() {
		a.requestPing()
	}
	a.all()
}

// movedTo notes that the connection of a cluster leads to another server. That needs a new agent:
// the old agent's state is that of the old server.
func (c *Controller) movedTo(cluster string) {
	c.mu.Lock()
	c.moved[cluster] = true
	c.mu.Unlock()
	select {
	case c.moves <- struct{}{}:
	default:
	}
}

// takeMoved returns the clusters whose connections moved, once.
func (c *Controller) takeMoved() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	moved := c.moved
	c.moved = map[string]bool{}
	return moved
}

// follows runs [Options.Follow] for the connection in git.
func (a *agent) follows(ctx context.Context) {
	if a.follow != nil {
		a.follow(ctx, a.credentialsChanged)
	}
}
